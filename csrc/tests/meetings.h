// Collective calls in memory that all ranks share: what each rank gives, and what it gets once all
// have given. Ranks are threads or forked processes.
#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "base/errors.h"
#include "base/kinds.h"
#include "mpi/mpi.h"
#include "reduce/reduce.h"

namespace gradred::testing {

// One rank's side of a call.
struct Side {
  // What all ranks must ask for alike. `what`: a Kind of call, or a number above all kinds.
  struct Asked {
    int what;
    std::size_t bytes;  // of the call's count
    mpi::Handle type, op;
    int root;
    bool operator==(const Asked&) const = default;
  };

  int rank = 0;
  Asked asked{};
  const void* send = nullptr;
  void* recv = nullptr;

  bool moves_data() const { return asked.what < static_cast<int>(kCalledKinds); }
  Kind kind() const { return static_cast<Kind>(asked.what); }
  PlaceInCall place(int size) const { return {rank, size, asked.root}; }
  std::size_t own_block() const { return static_cast<std::size_t>(rank) * asked.bytes; }
};

// The functions of operations that a program has made. Their handles begin here.
inline constexpr mpi::Handle kFirstOperation = 0x1000;
using Combine = void (*)(void*, void*, int*, mpi::Handle*);

class Meetings {
 public:
  static constexpr int kMostRanks = 4;
  static constexpr mpi::Handle kFirstDuplicate = 0x2000;

  // One call of all ranks: the one with this number on its communicator.
  struct Meeting {
    mpi::Handle comm;  // 0: this place is free
    std::uint64_t number;
    int left;               // ranks that have seen its end
    mpi::Handle duplicate;  // that it makes; 0: none yet
    struct Given {
      bool here;
      Side::Asked asked;
      std::byte data[std::size_t{16} << 10];
    } given[kMostRanks];
  };

  static Meetings* make(int ranks) {
    void* const memory =
        mmap(nullptr, sizeof(Meetings), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED && ranks <= kMostRanks, "memory for the ranks");
    auto* const made = static_cast<Meetings*>(memory);  // all zero
    made->ranks = ranks;
    pthread_mutexattr_t among_processes;
    pthread_mutexattr_init(&among_processes);
    pthread_mutexattr_setpshared(&among_processes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&made->mutex_, &among_processes);
    return made;
  }
  static void forget(Meetings* made) {
    if (made != nullptr) munmap(made, sizeof(Meetings));
  }

  // Held by callers of all functions below.
  class Lock {
   public:
    explicit Lock(Meetings& all) : mutex_(all.mutex_) { pthread_mutex_lock(&mutex_); }
    ~Lock() { pthread_mutex_unlock(&mutex_); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    pthread_mutex_t& mutex_;
  };

  // The next call of this rank on the communicator.
  Meeting& next(mpi::Handle comm, int rank) {
    const auto place = comm < kFirstDuplicate ? 0 : comm - kFirstDuplicate + 1;
    const std::uint64_t number = ++calls_[place][rank];
    Meeting* unused = nullptr;
    for (Meeting& one : meetings_) {
      if (one.comm == comm && one.number == number) return one;
      if (one.comm == 0) unused = &one;
    }
    check(unused != nullptr, "a place for one more call");
    unused->comm = comm;
    unused->number = number;
    return *unused;
  }
  std::uint64_t calls(int rank) const {
    std::uint64_t sum = 0;
    for (const auto& of_ranks : calls_) sum += of_ranks[rank];
    return sum;
  }
  // Takes the input of a rank, once.
  void give(Meeting& meeting, const Side& side) const {
    Meeting::Given& given = meeting.given[side.rank];
    if (given.here) return;
    given.here = true;
    given.asked = side.asked;
    if (!side.moves_data()) return;
    const std::size_t bytes = given_counts(side.kind(), side.place(ranks)) * side.asked.bytes;
    const auto* from = static_cast<const std::byte*>(side.send);
    if (side.send == mpi::get().is.in_place) {
      check(side.kind() != Kind::kScatter, "MPI_Scatter takes no input in place");
      const bool one_block = info_of(side.kind()).input == Part::kOwnBlock;
      from = static_cast<const std::byte*>(side.recv) + (one_block ? side.own_block() : 0);
    }
    check(bytes <= sizeof given.data, "room for the data of a rank");
    if (bytes > 0) std::memcpy(given.data, from, bytes);
  }
  bool all_agree(const Meeting& meeting, const Side& side) const {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!meeting.given[rank].here || meeting.given[rank].asked != side.asked) return false;
    }
    return true;
  }
  // Puts the result where a rank wants it.
  void take(const Meeting& meeting, const Side& side, const std::vector<Combine>& operations) {
    if (side.moves_data())
      reduces(side.kind()) ? reduce(meeting, side, operations) : move(meeting, side);
  }
  mpi::Handle duplicate(Meeting& meeting) {
    if (meeting.duplicate == 0) meeting.duplicate = kFirstDuplicate + made_++;
    ++held;
    return meeting.duplicate;
  }
  void leave(Meeting& meeting) const {
    if (++meeting.left == ranks) meeting = {};
  }

  int ranks;
  int held;  // duplicates that ranks have; each rank counts

 private:
  // From the highest rank to the lowest, which is another order than gradred's.
  void reduce(const Meeting& meeting, const Side& side,
              const std::vector<Combine>& operations) const {
    const RankRange range = reduced_ranks(side.kind(), side.rank, ranks);
    const auto& [what, bytes, asked_type, op, root] = side.asked;
    if (range.count() == 0 || bytes == 0) return;
    const std::size_t first = info_of(side.kind()).result == Part::kOwnBlock ? side.own_block() : 0;
    const DType dtype = *mpi::get().dtype(asked_type);
    auto count = static_cast<int>(bytes / size_of(dtype));
    mpi::Handle type = asked_type;
    std::memcpy(side.recv, meeting.given[range.end - 1].data + first, bytes);
    for (int rank = range.end - 2; rank >= range.first; --rank) {
      std::vector<std::byte> input(meeting.given[rank].data + first,
                                   meeting.given[rank].data + first + bytes);
      if (op >= kFirstOperation) {
        operations[op - kFirstOperation](input.data(), side.recv, &count, &type);
      } else {
        find_reduction(*mpi::get().op(op), dtype)
            ->pair(side.recv, input.data(), side.recv, static_cast<std::size_t>(count));
      }
    }
  }
  void move(const Meeting& meeting, const Side& side) const {
    std::vector<std::byte> vector;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::byte* const data = meeting.given[rank].data;
      const std::size_t counts = given_counts(side.kind(), {rank, ranks, side.asked.root});
      vector.insert(vector.end(), data, data + counts * side.asked.bytes);
    }
    const std::size_t bytes = got_counts(side.kind(), side.place(ranks)) * side.asked.bytes;
    const std::size_t first = side.kind() == Kind::kScatter ? side.own_block() : 0;
    if (bytes > 0) std::memcpy(side.recv, vector.data() + first, bytes);
  }

  pthread_mutex_t mutex_;
  mpi::Handle made_;
  std::uint64_t calls_[64][kMostRanks];
  Meeting meetings_[64];
};

}  // namespace gradred::testing
