// Operations that one rank leads: the others announce their data and wait for one word, the
// leader's announcement, which it makes with the result. In between it may do what takes a while,
// and ask other hosts: the others sleep, and each is woken once.
//
// The leader, rank 0, announces when it has seen all, so who has seen its announcement may leave as
// if it had seen all (group.h). A leader that refuses has not, nor has who leaves because of it.
#include <cstring>

#include "node/copy.h"
#include "node/group.h"

namespace gradred {

// It is there, and says so without an announcement.
void NodeGroup::lead(const Signature& signature) {
  states_[rank_].particulars[operation_ & 1].detail = signature.detail;
  announcement(rank_).what = signature.what;
  states_[rank_].leading.store(operation_, std::memory_order_relaxed);
}

// All others have announced.
void NodeGroup::take_charge(const NodeCall& call, Path path) {
  try {
    await_announcements(call.signature);  // which are there: only compares
  } catch (const Disagreement& error) {
    announce_refusal(error.what());
    catch_up_ = false;
    throw;
  }
  const std::size_t bytes = call.count * call.element;
  if (bytes == 0) return;
  const auto given = [&](std::size_t rank) -> const std::byte* {
    return path == Path::kInLine ? announcement(rank).data : slot(rank);
  };
  auto* const target = static_cast<std::byte*>(call.recv);
  if (call.kind == Kind::kBcast) {
    if (call.root > 0) std::memcpy(target, given(static_cast<std::size_t>(call.root)), bytes);
  } else if (call.kind == Kind::kAllgather) {
    for (std::size_t rank = 1; rank < size_; ++rank) {
      std::memcpy(target + part_begin(call, rank), given(rank), bytes);
    }
  } else {
    for (std::size_t rank = 1; rank < size_; ++rank) operands_[rank] = given(rank);
    operands_[0] = input_of(call);
    combine(call, target, call.count);
  }
}

void NodeGroup::pass_on(const NodeCall& call, Path path) {
  const std::size_t bytes = passed_on_bytes(call);
  const auto* const result = static_cast<const std::byte*>(call.recv);
  if (path == Path::kInLine) return announce(call.signature, result, bytes);
  past_ = stores_.past(bytes);
  give(slot(rank_), result, bytes);
  announce(call.signature, nullptr, 0);
}

// The leader has announced.
void NodeGroup::take_passed_on(const NodeCall& call, Path path) {
  const Announcement& leaders = announcement(0);
  const bool same = leaders.head.load(std::memory_order_relaxed) == head(call.signature) &&
                    leaders.what == call.signature.what;
  if (!same) [[unlikely]] {
    const Signature theirs = announced(0);
    catch_up_ = true;
    const bool refused = theirs.what >> 60 == static_cast<std::uint64_t>(Kind::kAborted);
    throw Disagreement(refused ? states_[0].particulars[operation_ & 1].reason
                               : disagreement_text(names_.number(rank_), call.signature,
                                                   names_.number(0), theirs));
  }
  if (call.kind == Kind::kBcast && call.root == rank()) return;
  const std::size_t bytes = passed_on_bytes(call);
  if (path == Path::kInLine) {
    copy_few(static_cast<std::byte*>(call.recv), leaders.data, bytes);
  } else {
    std::memcpy(call.recv, slot(0), bytes);
  }
}

}  // namespace gradred
