// Collective operations within one host on arrays in devices' memory, piece by piece through parts
// of it that all ranks' devices read: nothing but words about how far they are goes through the
// host's.
//
// A part has room for three pieces. At time t a rank copies piece t of its input into its part,
// reduces its share of piece t - 1, and copies piece t - 2 of the result out of the parts. Step t +
// 1 says that all of that is done; time t begins when all ranks have done step t. So a piece is put
// where piece t - 3 was, which all had copied at time t - 1.
#include <algorithm>
#include <cstring>

#include "memory/workspace.h"
#include "node/group.h"

namespace gradred {
namespace {

constexpr std::size_t kRoom = 3;      // pieces in a part
constexpr std::size_t kAligned = 16;  // bytes of which devices load many at once

// What one rank does with each piece.
class DevicePieces {
 public:
  DevicePieces(const NodeCall& call, std::size_t rank, std::size_t size)
      : call_(call),
        device_(*call.device),
        workspace_(*call.device->workspace),
        rank_(rank),
        size_(size),
        room_(workspace_.bytes() / kRoom / kAligned * kAligned),
        stride_(scatters() ? room_ / size / kAligned * kAligned : room_),
        per_piece_(stride_ / call.element) {}

  std::size_t count() const { return (call_.count + per_piece_ - 1) / per_piece_; }
  // How much later than its input a piece of the result can be there.
  std::size_t lag() const { return reduces() ? 2 : 1; }

  void put(std::size_t piece) {
    if (call_.kind == Kind::kBcast && rank_ != root()) return;
    for (std::size_t block = 0; block < (scatters() ? size_ : 1); ++block) {
      const std::size_t from = block * call_.count + begin(piece);
      const std::size_t to = place(piece) + block * stride_;
      const std::byte* const source = device_.input + from * call_.element;
      if (device_.op == Op::kPremul && reduces()) {
        workspace_.put_scaled(to, source, device_.dtype, length(piece), device_.factor);
      } else {
        workspace_.put(to, source, length(piece) * call_.element);
      }
    }
  }
  void reduce(std::size_t piece) {
    if (!reduces()) return;
    const Share mine = share(piece, rank_);
    if (mine.count == 0) return;
    workspace_.reduce(device_.op, device_.dtype, mine.place, mine.count);
  }
  void get(std::size_t piece) {
    std::byte* const target = device_.result + begin(piece) * call_.element;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      const Share theirs = share(piece, rank);
      if (theirs.count == 0) continue;
      workspace_.get(target + theirs.at * call_.element, rank, theirs.place,
                     theirs.count * call_.element);
    }
  }

 private:
  // Elements of a piece of the result that lie in a rank's part, and that this rank needs: where
  // they begin in this rank's result, counted from the piece, and in the part.
  struct Share {
    std::size_t at = 0, count = 0, place = 0;
  };

  bool reduces() const {
    return call_.kind == Kind::kAllreduce || call_.kind == Kind::kReduceScatterBlock;
  }
  bool scatters() const { return call_.kind == Kind::kReduceScatterBlock; }
  std::size_t root() const { return static_cast<std::size_t>(call_.root); }
  std::size_t begin(std::size_t piece) const { return piece * per_piece_; }
  std::size_t length(std::size_t piece) const {
    return std::min(per_piece_, call_.count - begin(piece));
  }
  std::size_t place(std::size_t piece) const { return piece % kRoom * room_; }

  Share share(std::size_t piece, std::size_t rank) const {
    const std::size_t all = length(piece), where = place(piece);
    switch (call_.kind) {
      case Kind::kAllgather:
        return {rank * call_.count, all, where};
      case Kind::kBcast:
        return {0, rank == root() && rank_ != root() ? all : 0, where};
      case Kind::kReduceScatterBlock:
        return {0, rank == rank_ ? all : 0, where + rank * stride_};
      default:
        return share_of_sums(all, rank, where);
    }
  }
  // On one device, processes take turns: one of them does it all. Else each rank's does its share.
  Share share_of_sums(std::size_t all, std::size_t rank, std::size_t where) const {
    if (workspace_.is_of_one_device()) return {0, rank == 0 ? all : 0, where};
    const std::size_t unit = kAligned / call_.element;
    const std::size_t each = (all + unit * size_ - 1) / (unit * size_) * unit;
    const std::size_t at = std::min(all, rank * each);
    return {at, std::min(each, all - at), where + at * call_.element};
  }

  const NodeCall& call_;
  DeviceCall& device_;
  Workspace& workspace_;
  const std::size_t rank_, size_, room_, stride_, per_piece_;
};

// What a rank found when it opened the others' parts; no text: all is well.
struct Opened {
  char why[500];
};

}  // namespace

bool NodeGroup::all_on_devices(const NodeCall& call) const {
  if (call.device == nullptr) return false;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if ((offer_of(rank).says & ReadOffer::kOnDevice) == 0) return false;
  }
  return true;
}

// Of all peers, by the tickets in their chunks.
std::string NodeGroup::open_workspaces(Workspace& workspace) const {
  try {
    for (std::size_t distance = 1; distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance);
      Workspace::Ticket ticket;
      std::memcpy(ticket.data(), chunk(peer, 0), sizeof ticket);
      workspace.open(peer, ticket);
    }
  } catch (const DeviceError& error) {
    return own_name() + ": " + error.what();
  }
  return "";
}

Steps NodeGroup::on_devices(NodeCall call) {
  DeviceCall& device = *call.device;
  Workspace& workspace = *device.workspace;
  std::size_t before = 0;  // steps of this operation
  if (!workspace.in_use()) {
    const Workspace::Ticket ticket = workspace.ticket();
    std::memcpy(chunk(rank_, 0), ticket.data(), sizeof ticket);
    step_done(1);
    for (std::size_t distance = 1; distance < size_; ++distance) {
      co_await step_of(peer_at(distance), 1);
    }
    Opened found{};
    open_workspaces(workspace).copy(found.why, sizeof found.why - 1);
    std::memcpy(chunk(rank_, 1), &found, sizeof found);
    step_done(2);
    for (std::size_t distance = 1; distance < size_; ++distance) {
      co_await step_of(peer_at(distance), 2);
      if (found.why[0] != '\0') continue;
      std::memcpy(&found, chunk(peer_at(distance), 1), sizeof found);
    }
    before = 2;
    if (found.why[0] != '\0') {
      workspace.refuse(found.why);
      step_done(3);  // from here on chunks may be written
      for (std::size_t distance = 1; distance < size_; ++distance) {
        co_await step_of(peer_at(distance), 3);
      }
      steps_end(3);
      co_return;
    }
    workspace.use();
  }
  while (!device.before->ready()) co_await Steps::LookAgain();
  DevicePieces pieces(call, rank_, size_);
  const std::size_t count = pieces.count(), lag = pieces.lag();
  device.begun = true;
  for (std::size_t time = 0; time < count + lag; ++time) {
    for (std::size_t distance = 1; time > 0 && distance < size_; ++distance) {
      co_await step_of(peer_at(distance), before + time);
    }
    if (time < count) pieces.put(time);
    if (time >= 1 && time <= count) pieces.reduce(time - 1);
    if (time >= lag) pieces.get(time - lag);
    while (!workspace.ready()) co_await Steps::LookAgain();
    step_done(before + time + 1);
  }
  // Who leaves may free its part.
  for (std::size_t distance = 1; distance < size_; ++distance) {
    co_await step_of(peer_at(distance), before + count + lag);
  }
  steps_end(before + count + lag);
  device.done = true;
}

}  // namespace gradred
