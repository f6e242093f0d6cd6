#include "named/work.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/copy_bytes.h"
#include "base/errors.h"
#include "base/signature.h"
#include "families/devices/device_workspace.h"
#include "reduce/reduce.h"

namespace gradred {
namespace {

// Copies an input to the buffer from which its operation starts, before any other work there.
void copy(const NamedArray& array, const CallOrder* order, void* to, std::size_t bytes) {
  if (bytes == 0 || to == array.in.data) return;
  if (order == nullptr) {
    copy_bytes(to, array.in.data, bytes);
  } else {
    order->before->copy(to, array.in.data, bytes);
  }
}

class Broadcast final : public NamedWork {
 public:
  explicit Broadcast(NamedPart first) : NamedWork(std::move(first)) {}

 protected:
  bool start_phase(Communicator& comm, int) override {
    const int root = operation().submission().root;
    for (const NamedArray& array : operation().arrays()) {
      const Order order = order_after(array.after);
      if (comm.rank() == root) copy(array, order.get(), array.out.data, array.bytes());
      broadcast(comm, array.out, array.bytes(), root, order);
    }
    return true;
  }
};

// The ranks first exchange their numbers of rows.
class Allgather final : public NamedWork {
 public:
  explicit Allgather(NamedPart first) : NamedWork(std::move(first)) {}

 protected:
  bool start_phase(Communicator& comm, int phase) override {
    const auto size = static_cast<std::size_t>(comm.size());
    auto& arrays = operation().arrays();
    if (phase == 0) {
      for (const NamedArray& array : arrays) mine_.push_back(array.rows);
      for (const NamedArray& array : arrays) {
        mine_.push_back(static_cast<std::int64_t>(array.row_bytes()));
      }
      all_.resize(size * mine_.size());
      allgather(comm, {mine_.data()}, {all_.data()}, mine_.size() * sizeof mine_[0]);
      return false;
    }
    for (std::size_t i = 0; i < arrays.size(); ++i) gather(comm, i);
    return true;
  }

 private:
  void gather(Communicator& comm, std::size_t index) {
    const auto size = static_cast<std::size_t>(comm.size());
    const std::size_t arrays = operation().arrays().size();
    NamedArray& array = operation().arrays()[index];
    std::vector<std::int64_t> rows;
    std::size_t row_bytes = 0;  // a rank without rows does not know its own
    for (std::size_t rank = 0; rank < size; ++rank) {
      rows.push_back(all_[rank * mine_.size() + index]);
      row_bytes =
          std::max(row_bytes, static_cast<std::size_t>(all_[rank * mine_.size() + arrays + index]));
    }
    const auto bytes_of = [&](std::size_t rank) {
      return static_cast<std::size_t>(rows[rank]) * row_bytes;
    };
    std::size_t total = 0;
    for (std::size_t rank = 0; rank < size; ++rank) total += bytes_of(rank);
    std::size_t before = 0;
    for (int rank = 0; rank < comm.rank(); ++rank)
      before += bytes_of(static_cast<std::size_t>(rank));
    OutBuffer to = operation().make_output(index, total, before);
    auto* at = static_cast<std::byte*>(to.data);
    const bool is_even =
        std::ranges::count(rows, rows.front()) == static_cast<std::ptrdiff_t>(size);
    const Order order = order_after(array.after, is_even);  // else several calls share it
    if (is_even) {
      allgather(comm, array.in.data == at + before ? InBuffer() : array.in, to, bytes_of(0), order);
    } else {
      for (std::size_t rank = 0; rank < size; at += bytes_of(rank), ++rank) {
        if (static_cast<int>(rank) == comm.rank()) copy(array, order.get(), at, bytes_of(rank));
        to.data = at;
        broadcast(comm, to, bytes_of(rank), static_cast<int>(rank), order);
      }
    }
    operation().rows.push_back(std::move(rows));
  }

  std::vector<std::int64_t> mine_, all_;
};

// The ranks first exchange how many rows each sends to each other. If they share no memory, each
// rank then broadcasts all its rows, and the others pick those for them.
class Alltoall final : public NamedWork {
 public:
  explicit Alltoall(NamedPart first) : NamedWork(std::move(first)) {}

 protected:
  void conclude(Communicator& comm) override {
    const auto size = static_cast<std::size_t>(comm.size());
    const auto me = static_cast<std::size_t>(comm.rank());
    std::vector<std::int64_t> rows;
    for (std::size_t rank = 0; rank < size; ++rank) rows.push_back(rows_of(rank, me));
    operation().rows.push_back(std::move(rows));
    if (shown_.empty()) return;
    for (std::size_t rank = 0; rank < size; ++rank) {
      const std::byte* from = shown_[rank].get();
      for (std::size_t other = 0; other < me; ++other) from += split(rank, other);
      if (split(rank, me) != 0) copy_bytes(to_, from, split(rank, me));
      to_ += split(rank, me);
    }
  }

  bool start_phase(Communicator& comm, int phase) override {
    const auto size = static_cast<std::size_t>(comm.size());
    NamedArray& array = operation().arrays()[0];
    if (phase == 0) {
      if (array.on_device) move_to_host();
      mine_ = operation().splits();
      mine_.push_back(static_cast<std::int64_t>(array.row_bytes()));
      all_.resize(size * mine_.size());
      allgather(comm, {mine_.data()}, {all_.data()}, mine_.size() * sizeof mine_[0]);
      return false;
    }
    std::size_t row_bytes = 0;
    for (std::size_t rank = 0; rank < size; ++rank) {
      row_bytes = std::max(row_bytes, static_cast<std::size_t>(all_[rank * mine_.size() + size]));
    }
    std::vector<std::size_t> gives(size), gets(size);
    std::uint64_t hash = 0;
    for (std::size_t from = 0; from < size; ++from) {
      for (std::size_t to = 0; to < size; ++to) {
        splits_.push_back(static_cast<std::size_t>(rows_of(from, to)) * row_bytes);
        gives[from] += splits_.back();
        gets[to] += splits_.back();
        hash = mix(hash, splits_.back());
      }
    }
    to_ = static_cast<std::byte*>(
        operation().make_output(0, gets[static_cast<std::size_t>(comm.rank())]).data);
    if (comm.dispatch().starts_on_node({.kind = Kind::kAlltoall})) {
      start_call(comm, {.kind = Kind::kAlltoall,
                        .in = {array.in.data != nullptr ? array.in.data : to_},
                        .out = {to_},
                        .count = std::ranges::max(gives),
                        .dtype = DType::kUInt8,
                        .layout = hash | 1,
                        .splits = splits_.data(),
                        .mpi_request = false});
    } else {
      show(comm, gives);
    }
    return true;
  }

 private:
  void show(Communicator& comm, const std::vector<std::size_t>& gives) {
    for (std::size_t rank = 0; rank < gives.size(); ++rank) {
      shown_.push_back(std::make_unique_for_overwrite<std::byte[]>(gives[rank]));
      if (static_cast<int>(rank) == comm.rank() && gives[rank] != 0) {
        copy_bytes(shown_[rank].get(), operation().arrays()[0].in.data, gives[rank]);
      }
      broadcast(comm, {shown_[rank].get()}, gives[rank], static_cast<int>(rank));
    }
  }
  std::int64_t rows_of(std::size_t from, std::size_t to) const {
    return all_[from * mine_.size() + to];
  }
  std::size_t split(std::size_t from, std::size_t to) const {  // in bytes
    return splits_[from * (mine_.size() - 1) + to];
  }

  std::vector<std::int64_t> mine_, all_;
  std::vector<std::size_t> splits_;
  std::byte* to_ = nullptr;
  std::vector<std::unique_ptr<std::byte[]>> shown_;
};

// An array whose rows divide evenly uses a reduce-scatter; another is allreduced, and each rank
// takes its part.
class ReduceScatter final : public NamedWork {
 public:
  explicit ReduceScatter(NamedPart first) : NamedWork(std::move(first)) {}

 protected:
  void conclude(Communicator& comm) override {
    const Factors factors = factors_of(operation().submission(), comm.size());
    for (std::size_t i = 0; i < operation().arrays().size(); ++i) {
      const NamedArray& array = operation().arrays()[i];
      const auto me = static_cast<std::size_t>(comm.rank());
      const auto& rows = operation().rows[i];
      const std::size_t mine = static_cast<std::size_t>(rows[me]) * array.row_bytes();
      if (whole_[i] != nullptr) {
        const std::int64_t before =
            std::accumulate(rows.begin(), rows.begin() + comm.rank(), std::int64_t{0});
        const std::size_t from = static_cast<std::size_t>(before) * array.row_bytes();
        if (mine != 0) copy_bytes(outputs_[i].data, whole_[i].get() + from, mine);
      }
      if (factors.after != 1.0) {
        scale(outputs_[i].data, mine / size_of(array.dtype), array.dtype, factors.after, false);
      }
    }
  }

  bool start_phase(Communicator& comm, int phase) override {
    const Factors factors = factors_of(operation().submission(), comm.size());
    auto& arrays = operation().arrays();
    if (phase == 0 && operation().submission().on_device != 0) {
      const auto is_even = [&](const NamedArray& one) { return one.rows % comm.size() == 0; };
      const bool scales = factors.before != 1.0 || factors.after != 1.0;
      const bool averages =
          factors.op == Op::kAvg &&
          std::ranges::any_of(arrays, [](const auto& one) { return is_integer(one.dtype); });
      if (scales || averages || !std::ranges::all_of(arrays, is_even)) {
        move_to_host();
        return false;
      }
    }
    for (std::size_t i = 0; i < arrays.size(); ++i) start(comm, i, factors);
    return true;
  }

 private:
  void start(Communicator& comm, std::size_t index, const Factors& factors) {
    const NamedArray& array = operation().arrays()[index];
    const std::int64_t size = comm.size(), each = array.rows / size, more = array.rows % size;
    std::vector<std::int64_t> rows;
    for (std::int64_t rank = 0; rank < size; ++rank) rows.push_back(each + (rank < more ? 1 : 0));
    const std::int64_t mine = rows[static_cast<std::size_t>(comm.rank())];
    outputs_.push_back(
        operation().make_output(index, static_cast<std::size_t>(mine) * array.row_bytes()));
    operation().rows.push_back(std::move(rows));
    whole_.emplace_back();
    if (array.count == 0) return;
    InBuffer from = array.in;
    if (factors.before != 1.0) {
      scaled_.push_back(std::make_unique_for_overwrite<std::byte[]>(array.bytes()));
      copy_bytes(scaled_.back().get(), array.in.data, array.bytes());
      scale(scaled_.back().get(), array.count, array.dtype, factors.before, false);
      from = {scaled_.back().get()};
    }
    Call call{.kind = more == 0 ? Kind::kReduceScatterBlock : Kind::kAllreduce,
              .in = from,
              .order = order_after(array.after),
              .count = more == 0 ? array.count / static_cast<std::size_t>(size) : array.count,
              .dtype = array.dtype,
              .op = factors.op,
              .mpi_request = false};
    if (more != 0) whole_.back() = std::make_unique_for_overwrite<std::byte[]>(array.bytes());
    call.out = more == 0 ? outputs_.back() : OutBuffer{whole_.back().get()};
    start_call(comm, call);
  }

  std::vector<OutBuffer> outputs_;
  // nullptr: the call yields this rank's part alone.
  std::vector<std::unique_ptr<std::byte[]>> whole_;
  std::vector<std::unique_ptr<std::byte[]>> scaled_;
};

// Does nothing: an entry is in the log only once all ranks have submitted it.
class Barrier final : public NamedWork {
 public:
  explicit Barrier(NamedPart first) : NamedWork(std::move(first)) {}

 protected:
  bool start_phase(Communicator&, int) override { return true; }
};

}  // namespace

Factors factors_of(const Submission& what, int size) {
  const bool scales = what.prescale != 1.0 || what.postscale != 1.0;
  if (what.op != Op::kAvg) return {what.op, what.prescale, what.postscale};
  if (!scales && size > 1) return {Op::kAvg, 1.0, 1.0};
  return {Op::kSum, what.prescale, what.postscale / size};
}

std::unique_ptr<NamedWork> NamedWork::of(NamedPart first, KeptVectors& kept) {
  switch (first.submission().kind) {
    case NamedKind::kAllreduce:
      return make_allreduce(std::move(first), kept);
    case NamedKind::kAllgather:
      return std::make_unique<Allgather>(std::move(first));
    case NamedKind::kBroadcast:
      return std::make_unique<Broadcast>(std::move(first));
    case NamedKind::kAlltoall:
      return std::make_unique<Alltoall>(std::move(first));
    case NamedKind::kReduceScatter:
      return std::make_unique<ReduceScatter>(std::move(first));
    case NamedKind::kBarrier:
    case NamedKind::kRefusal:
    case NamedKind::kJoin:
      break;
  }
  return std::make_unique<Barrier>(std::move(first));
}

std::uint64_t NamedWork::bytes() const {
  return std::accumulate(
      parts_.begin(), parts_.end(), std::uint64_t{0},
      [](std::uint64_t sum, const NamedPart& part) { return sum + part.bytes(); });
}

bool NamedWork::shares_memory_with(const NamedWork& other) const {
  const auto share = [](const NamedPart& mine, const NamedPart& its) {
    return mine.operation != nullptr && its.operation != nullptr &&
           mine.operation != its.operation &&  // another chunk of it
           mine.operation->shares_memory_with(*its.operation);
  };
  return std::ranges::any_of(parts_, [&](const NamedPart& mine) {
    return std::ranges::any_of(other.parts_,
                               [&](const NamedPart& its) { return share(mine, its); });
  });
}

void NamedWork::start_call(Communicator& comm, const Call& call) {
  // Work on a device may go on after its call has ended.
  std::shared_ptr<StartedOperation> started =
      call.order ? comm.start(call) : comm.start_unless_ended(call);
  at_once_ = UsedTransport::kUnknown;
  if (started == nullptr) {
    at_once_ = comm.node_path().node()->used_transport();
  } else {
    calls_.push_back(std::move(started));
  }
}

bool NamedWork::prepares_later() const {
  if (!gives_) return false;
  for (const NamedPart& part : parts_) {
    if (part.operation == nullptr) continue;
    const Submission& what = part.submission();
    const bool reduces =
        what.kind == NamedKind::kAllreduce || what.kind == NamedKind::kReduceScatter;
    for (const NamedArray& array : part.operation->arrays()) {
      DeviceMemory* const device = array.in.memory.device();
      if (device == nullptr || array.bytes() < DeviceWorkspace::kLeast) continue;
      const Reduction reduction{what.op, array.dtype};
      if (device->prepares_later(array.in.data, array.bytes(), reduces ? &reduction : nullptr)) {
        return true;
      }
    }
  }
  return false;
}

bool NamedWork::start(Communicator& comm) {
  if (started_) return true;
  if (prepares_later()) return false;
  const auto ended = [](const auto& call) { return call->ended(); };
  if (!std::ranges::all_of(calls_, ended)) return false;
  for (const auto& call : calls_) call->rethrow();
  if (notes_start_ && phase_ == 0) started_ns_ = now_ns();
  if (phase_ > 0) {
    if (!inputs_are_there()) return false;
    calls_.clear();
  }
  started_ = start_phase(comm, phase_++);
  return started_;
}

bool NamedWork::advance(Progress& stopped) {
  for (const auto& call : calls_) {
    if (const Progress progress = call->advance(); !progress) {
      stopped = progress;
      return false;
    }
    call->rethrow();
  }
  return started_;
}

bool NamedWork::finish(Communicator& comm) {
  if (!std::exchange(concluded_, true)) conclude(comm);
  return results_are_there();
}

bool NamedWork::inputs_are_there() { return !on_host_ || on_host_->inputs_are_there(); }
bool NamedWork::results_are_there() { return !on_host_ || on_host_->results_are_there(); }

bool NamedWork::settle() noexcept {
  if (on_host_ && !on_host_->settle()) return false;
  return std::ranges::all_of(orders_, [](const Order& one) { return one->before->settle(); });
}

NamedWork::Order NamedWork::order_after(const After& after, bool may_give) {
  std::shared_ptr<Stream> before = after.open_stream();
  if (before == nullptr) return nullptr;
  std::shared_ptr<EndEvent> given;
  if (gives_ && may_give) given_.push_back(given = std::make_shared<EndEvent>());
  orders_.push_back(std::make_shared<const CallOrder>(
      CallOrder{.before = std::move(before), .given = std::move(given)}));
  return orders_.back();
}

bool NamedWork::is_given() const {
  const auto is_set = [](const auto& one) { return one->is_set(); };
  const auto is_whole = [](const NamedPart& one) { return one.submission().chunks() == 1; };
  return started_ && !calls_.empty() && given_.size() == calls_.size() &&
         std::ranges::all_of(parts_, is_whole) && std::ranges::all_of(given_, is_set);
}

bool NamedWork::abandon(const std::exception_ptr& reason) noexcept {
  bool free = true;
  for (const auto& call : calls_) {
    call->abandon(reason);
    free &= !call->holds_memory();
  }
  return free && settle();  // what holds memory anyway may wait for long
}

void NamedWork::broadcast(Communicator& comm, OutBuffer data, std::size_t bytes, int root,
                          Order order) {
  if (bytes == 0) return;
  start_call(comm, {.kind = Kind::kBcast,
                    .out = data,
                    .order = std::move(order),
                    .count = bytes,
                    .dtype = DType::kUInt8,
                    .root = root,
                    .mpi_request = false});
}

void NamedWork::allgather(Communicator& comm, InBuffer mine, OutBuffer all, std::size_t bytes,
                          Order order) {
  if (bytes == 0) return;
  start_call(comm, {.kind = Kind::kAllgather,
                    .in = mine,
                    .out = all,
                    .order = std::move(order),
                    .count = bytes,
                    .dtype = DType::kUInt8,
                    .mpi_request = false});
}

}  // namespace gradred
