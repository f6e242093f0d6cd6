// After a death: the ranks that live agree on who they are and make a group of their own.
//
// Everything goes through the memory of the old group, which all of them still have mapped; the MPI
// is not asked. One attempt takes part in these steps:
//
//   1. Each rank says that it takes part, and waits until every other one has done so or has ended.
//   2. It writes down whom it has seen alive. The list of whoever is first to enter its number in
//      the header (a compare-and-swap) counts, also if that rank dies at once: all read the same.
//   3. The members of the list make a group as any ranks do, over a Bootstrap in this memory.
//   4. When all have it, the attempt is entered as successful; when a member has died before, or
//      one of them gives up, as failed, with the reason. The first entry counts.
//
// So either all members that live get a group of the same members, or all throw the same, and may
// try again: the next attempt has the next number, and a rank that comes late takes part in it.
//
// Why two cells per rank are enough: as for announcements (group.h). Members and cells of an
// attempt are written only when all that live have left the one before.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "node/group.h"

namespace gradred {

// How the attempts so far have ended, in one word: the number of the last, the rank that ended it,
// and for it and the 15 before a bit that says "well".
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
  // The group may be sound or poisoned, must outlive this, and may be shrunk again and again.
  explicit Shrinking(const NodeGroup& group);

  // One attempt; collective over the ranks that live. Throws
  //   PeerLost        when a rank ends meanwhile: all that live may try again;
  //   what Poll threw on this rank, and TransportError or TimeoutError with the same text on the
  //   others;
  //   TransportError  when there is no memory for a new group.
  std::unique_ptr<NodeGroup> run(Poll* poll);

  // The ranks in the old group of the new one's ranks; after run().
  const std::vector<std::size_t>& members() const { return members_; }
  // The ranks of the old group whose processes have ended; after run().
  std::vector<std::size_t> ended() const;
  // Who keeps this rank waiting, in words, and whether it is for this rank to say so. While run()
  // waits.
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
  const std::size_t rank_, size_;  // in the group
  Waiter waiter_;
  std::uint64_t attempt_ = 0;
  std::uint64_t step_ = 0;  // the last that this rank has done
  std::size_t awaited_;     // the rank whose coming is awaited; the size when it is all members'
  std::size_t new_rank_ = 0;
  std::vector<std::size_t> members_;
};

}  // namespace gradred
