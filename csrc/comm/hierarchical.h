// Plan "hierarchical" on hosts that share memory: inside each host the data go through its shared
// memory, between hosts by messages.
//
//                   before crossing           crosses                    after it
//   allreduce       combine: each rank gets   the sums of each lane      share: each rank gives
//                   the sums of its lanes                                its lanes to all
//   reduce_scatter  combine: the sums of      blocks, to the hosts of    -
//                   the blocks it carries     their ranks, and summed
//   allgather       -                         blocks, to all other       share: each rank gives
//                                             hosts                      the blocks it carries
//   bcast           on the root's host: the   each lane                  share, on the others
//                   root gives all to all
//
// A long vector goes in pieces: while one is on the wire the host works on the next one, in the
// order combine 0, combine 1, share 0, combine 2, share 1, ... on all ranks of a host. A host that
// has nothing to do before data cross agrees on the call there. What crosses is the middle of the
// plan's specification (schedule/combinators.h, schedule/groups.h).
//
// Where only leaders cross, a vector that fits a slot goes through memory in one operation, which
// the leader leads: it has what all give, crosses, and passes the result on.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "comm/hosted.h"
#include "schedule/partition.h"

namespace gradred {

class HierarchicalOperation final : public HostedOperation {
 public:
  HierarchicalOperation(std::shared_ptr<Communicator> comm, const Call& call, const Plan& plan);
  void bind(const Call& call) override;

 protected:
  bool carry_out() override;
  std::unique_ptr<BoundPlan> take_bound_plan() override;
  bool awaits_messages() const override;

 private:
  void scale_by_factor(const Call& call);
  bool alone() const { return group() == nullptr; }
  bool is(Kind kind) const { return call_.kind == kind; }
  bool has_blocks() const { return is(Kind::kReduceScatterBlock) || is(Kind::kAllgather); }
  bool on_roots_host() const { return roots_place_ >= 0; }
  const void* input() const { return scaled_.empty() ? call_.in.data : scaled_.data(); }
  bool in_place() const { return input() == kInPlace || input() == call_.out.data; }
  // Of the vector that is combined, crosses and is shared.
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
  std::size_t end_of(std::size_t piece) const;  // in the vector, in bytes
  bool has_input(std::size_t end) const;        // before there
  bool before_crossing(std::size_t piece);
  bool after_crossing(std::size_t piece);
  void cross(std::size_t piece);
  void advance_crossing();
  NodeCall on_vector(Kind kind, std::size_t piece);
  NodeCall led_call();
  std::optional<NodeCall> call_before(std::size_t piece);
  std::optional<NodeCall> call_after(std::size_t piece);

  std::vector<std::byte> scaled_;  // the input times the factor of the call, if it has one
  const int roots_place_;          // of a broadcast: among the ranks of this host, or -1
  const bool led_;
  std::size_t combined_ = 0, shared_ = 0;  // pieces
};

}  // namespace gradred
