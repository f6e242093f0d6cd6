// After a process has ended: the living ranks agree on who they are and form a new group.
//
// All communication goes through the memory of the old group, which all of them still have mapped.
// MPI is not used. An attempt has these steps:
//
//   1. Each rank publishes that it takes part. It waits until every other rank has done so or has
//      ended.
//   2. Each rank writes a list of the ranks that it has seen alive. The list of the rank that first
//      enters its number in the header (by compare-and-swap) applies, even if that rank ends at
//      once. So all ranks read the same list.
//   3. The members of the list create a group in the usual way, over a Bootstrap in this memory.
//   4. When all have it, the attempt is recorded as successful. If a member ends before that, or
//      gives up, the attempt is recorded as failed, with the reason. The first record applies.
//
// So either all living members get a group of the same members, or all throw the same error and may
// try again. The next attempt has the next number, and a rank that comes late takes part in it.
//
// Two cells per rank are enough for the same reason as two announcements (group.h). The members and
// cells of an attempt are written only after all living ranks have left the attempt before.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "node/group/group.h"

namespace gradred {

// How the attempts so far have ended, in one 64-bit word: the number of the last attempt, the rank
// that ended it, and one success bit for it and for each of the 15 attempts before it.
struct AttemptsEnded {
  std::uint64_t word = 0;

  std::uint64_t last() const { return word >> 32; }
  std::size_t by() const { return word >> 16 & 0xffff; }
  bool include(std::uint64_t attempt) const { return last() >= attempt; }
  bool well(std::uint64_t attempt) const {
    const std::uint64_t ago = last() - attempt;
    return ago < 16 && (word >> ago & 1) != 0;
  }
  AttemptsEnded and_next(std::size_t by, bool well) const {
    const std::uint64_t history = (word << 1 | (well ? 1 : 0)) & 0xffff;
    return {(last() + 1) << 32 | std::uint64_t{by} << 16 | history};
  }
};

class Shrinking final : public Bootstrap, private Guard {
 public:
  // The group may be usable or poisoned, and may be shrunk repeatedly. The caller keeps it alive as
  // long as this object.
  explicit Shrinking(const NodeGroup& group);

  // Makes one attempt. Collective over the living ranks. Throws
  //   PeerLost        if a rank ends meanwhile. All living ranks may try again.
  //   what Poll threw, on this rank. The others throw TransportError or TimeoutError with its text.
  //   TransportError  if there is no memory for a new group.
  std::unique_ptr<NodeGroup> run(Poll* poll);

  // For each rank of the new group, its rank in the old group. Valid after run().
  const std::vector<std::size_t>& members() const { return members_; }
  // The ranks of the old group whose processes have ended. Valid after run().
  std::vector<std::size_t> ended() const;
  // A text that names the ranks for which this rank waits, and whether this rank is the one to
  // report it. Valid while run() waits.
  std::string missing() const;
  WaitRecord wait_record() const;  // the same in numbers
  bool is_first_to_wait() const;

  int rank() const override { return static_cast<int>(new_rank_); }
  int size() const override { return static_cast<int>(members_.size()); }
  void allgather(const void* mine, std::size_t bytes, void* all) override;
  void barrier() override;
  RankNames names() const override;  // of the new group

 private:
  void glance() override;
  void check_awaited() override;

  void attempt(std::unique_ptr<NodeGroup>& made);
  void give_up();
  void await_all();
  void decide();
  void await_members();
  void publish(std::uint64_t step);
  void end(bool well) noexcept;
  void throw_failed(AttemptsEnded ended) const;

  AttemptsEnded ended_so_far() const;
  ShrinkState& state(std::size_t rank) const { return part_.shrink_state(rank); }
  const ProcessId& process_of(std::size_t rank) const {
    return group_.process(static_cast<int>(rank));
  }
  bool has_done(std::size_t rank, std::uint64_t step) const;
  bool has_left(std::size_t rank) const;
  std::vector<std::size_t> absent() const;
  std::string described(std::size_t rank) const;

  const NodeGroup& group_;
  const SharedPart& part_;
  const std::size_t rank_, size_;  // in the old group
  Waiter waiter_;
  std::uint64_t attempt_ = 0;
  std::uint64_t step_ = 0;  // the last step that this rank has done
  std::size_t awaited_;     // the rank awaited in await_all(); size_ while all members are awaited
  std::size_t new_rank_ = 0;
  std::vector<std::size_t> members_;
};

}  // namespace gradred
