// Plan "hierarchical" on hosts whose ranks share memory: inside each host data go through its
// shared memory, between hosts they go by messages. A lane is a run of chunks that one rank of each
// host carries between the hosts (schedule/combinators.h).
//
//                   before crossing           crosses                    after it
//   allreduce       combine: each rank gets   the sums of each lane      share: each rank gives
//                   the sums of its lanes                                its lanes to all
//   reduce_scatter  combine: the sums of      blocks, to the hosts of    -
//                   the blocks it carries     their ranks, and summed
//   allgather       -                         blocks, to all other       share: each rank gives
//                                             hosts                      the blocks it carries
//   bcast           on the root's host: the   each lane                  share, on other hosts
//                   root gives all to all
//
// A long vector goes in pieces: while one piece is in flight between hosts, the host works on the
// next one. All ranks of a host use the same order: combine 0, combine 1, share 0, combine 2, share
// 1, ... A host that has nothing to do before data cross agrees on the call at that point. What
// crosses is the middle of the plan's specification (schedule/combinators.h, schedule/groups.h).
//
// If only leaders exchange data between hosts, a vector that fits a slot goes through memory in one
// operation that the leader leads. The leader collects the inputs, exchanges data with the other
// leaders, and passes the result on.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "families/messages/hosted.h"
#include "schedule/partition.h"

namespace gradred {

class HierarchicalOperation final : public HostedOperation {
 public:
  HierarchicalOperation(std::shared_ptr<const MessageParts> parts, const Call& call,
                        const Plan& plan);
  void bind(const Call& call) override;

 protected:
  bool carry_out() override;
  std::unique_ptr<BoundPlan> take_bound_plan() override;
  bool awaits_messages() const override;

 private:
  void scale_by_factor(const Call& call);
  bool alone() const { return group() == nullptr; }
  bool is(Kind kind) const { return call_.kind == kind; }
  bool on_roots_host() const { return roots_place_ >= 0; }
  const void* input() const { return scaled_.empty() ? call_.in.data : scaled_.data(); }
  bool in_place() const { return input() == kInPlace || input() == call_.out.data; }
  // The vector that is combined, crosses and is shared.
  std::size_t count() const;
  std::byte* vector() const;
  std::byte* vector(std::size_t piece) const {
    return vector() + pieces().begin(piece) * size_of(call_.dtype);
  }
  Partition pieces() const { return {count(), plan_.slices}; }

  void put_input();
  void take_result();
  bool carry_out_pieces();
  bool carry_out_led();
  std::size_t end_of(std::size_t piece) const;  // position in the vector, in bytes
  bool has_input(std::size_t end) const;        // whether the input before there has come
  bool before_crossing(std::size_t piece);
  bool after_crossing(std::size_t piece);
  void cross(std::size_t piece);
  void advance_crossing();
  NodeCall on_vector(Kind kind, std::size_t piece);
  NodeCall led_call();
  std::optional<NodeCall> call_before(std::size_t piece);
  std::optional<NodeCall> call_after(std::size_t piece);

  std::vector<std::byte> scaled_;  // the input times the call's factor, if any
  const int roots_place_;          // for broadcasts: index among this host's ranks, or -1
  const bool led_;
  std::size_t combined_ = 0, shared_ = 0;  // numbers of pieces
};

}  // namespace gradred
