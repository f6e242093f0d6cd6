// The messages of a board that is one of several: what it sends to the coordinator and what it
// receives.
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "named/board.h"
#include "named/board_layout.h"

namespace gradred {

void Board::tell() {
  if (!is_one_of_several_) return;
  header_.outgoing.fetch_add(1, std::memory_order_release);
  if (rank_ != 0) ring_for_sleepers(header_.outgoing_bell, nullptr);
}

std::vector<HostGroupMessage> Board::take_outgoing() {
  std::vector<HostGroupMessage> made;
  const Lock lock(*this);
  for (; header_.first_ready != 0; header_.first_ready = slot(header_.first_ready - 1).next_ready) {
    const Slot& ready = slot(header_.first_ready - 1);
    made.push_back(
        {.kind = Said::kReady,
         .some_joined = ready.arrived != ranks_,
         .rank = names_.number(static_cast<std::size_t>(ready.first)),
         .name = ready.name,
         .text = ready.has_problem ? ready.problem : "",
         .structure = ready.submission.structure != 0 ? structure_of(header_.first_ready - 1) : "",
         .submission = agreed(header_.first_ready - 1)});
  }
  header_.last_ready = 0;
  if (std::exchange(header_.joins, 0U) != 0) {
    made.push_back({.kind = Said::kJoined, .rank = header_.last_joined});
  }
  if (std::exchange(header_.leaves, 0U) != 0) {
    made.push_back({.kind = Said::kLeft, .text = header_.why_leaves});
    if (header_.failure != 0) made.back().failure = static_cast<Failure>(header_.failure - 1);
  }
  return made;
}

void Board::ring_outgoing() {
  header_.outgoing.fetch_add(1, std::memory_order_release);
  ring_for_sleepers(header_.outgoing_bell, nullptr);
}

Awaited Board::outgoing() const {
  return {&header_.outgoing, header_.outgoing.load(std::memory_order_relaxed) + 1,
          &header_.outgoing_bell, nullptr};
}

bool Board::receive(std::span<const HostGroupMessage> messages) {
  const Lock lock(*this);
  const HostGroupMessage& first = messages.front();
  switch (first.kind) {
    case Said::kAgreed:
      if (!has_room(messages.size())) return false;
      for (const HostGroupMessage& one : messages) receive_agreed(one, &one != &first);
      wake();
      return true;
    case Said::kAllJoined:
      if (!has_room()) return false;
      append_join(first.rank);
      wake();
      return true;
    case Said::kWaits:
      receive_waits(first);
      return true;
    case Said::kLeft:
      end(first.text);
      return true;
    case Said::kReady:
    case Said::kJoined:
    case Said::kLacks:
      break;
  }
  throw TransportError("named operations: the coordinator has sent what only host groups send");
}

// If all ranks of this host group have joined, the board has no slot of this name.
void Board::receive_agreed(const HostGroupMessage& message, bool joins) {
  const std::uint32_t index = find(message.name, hash_of(message.name));
  Logged& entry = log_message(message, joins);
  if (index == kSlots || !slot(index).ready) return;
  slot(index).entry = header_.logged;
  entry.place = index;
  entry.last = slot(index).last;
  if (entry.is_last) set_free(index);
}

void Board::receive_waits(const HostGroupMessage& message) {
  const std::uint32_t index = find(message.name, hash_of(message.name));
  if (index == kSlots || slot(index).arrived == 0) return;
  std::string text;
  for (const std::int32_t rank : message.ranks) {
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(names_.called(rank));
  }
  set_text(slot(index).elsewhere, text);
  slot(index).is_missed = !text.empty();
}

bool Board::is_taken() {
  const Lock lock(*this);
  const bool taken = header_.closed == header_.logged;
  header_.asks_for_taken = taken ? 0 : 1;
  return taken;
}

std::vector<std::int32_t> Board::lacking(std::string_view name) const {
  const Lock lock(*this);
  const std::uint32_t index = find(name, hash_of(name));
  std::vector<std::int32_t> found;
  if (index != kSlots && slot(index).ready) return found;
  const bool known = index != kSlots && slot(index).arrived != 0;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if ((!known || !has_arrived(index, rank)) && joined_[rank] == 0) {
      found.push_back(names_.number(rank));
    }
  }
  return found;
}

}  // namespace gradred
