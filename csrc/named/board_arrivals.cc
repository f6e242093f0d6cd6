// How submissions get to the board: through the rank's lane, or under the lock. The rank that holds
// the lock next, or a watcher, collects the lanes (docs/design/named.md).

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "named/board.h"
#include "named/board_layout.h"

namespace gradred {

std::optional<Board::Place> Board::arrive(std::string_view name, const Submission& submission,
                                          const NamedTexts& texts) {
  const auto found = known_.find(name);
  const bool is_known = found != known_.end() && alike(found->second.submission, submission);
  const Known* const known = is_known ? &found->second : nullptr;
  const bool is_one_of_many = !std::exchange(is_first_, false);
  const bool may_publish = is_one_of_many && known != nullptr;
  const bool published =
      may_publish && submission.form == NamedForm::kPlain && publish(*known, submission.priority);
  if (published && !is_watched() && is_current(*known)) return known->place;
  const Lock lock(*this);
  collect();
  std::optional<Place> place;
  if (published && std::exchange(dropped_[rank_], 0U) == 0) {
    place = known->place;
  } else {
    place = arrive_in_slot(name, submission, known, texts);
  }
  wake_if_ready();
  return place;
}

// Writes an arrival to this rank's lane, if that is possible. The caller must check afterwards: the
// arrival does not count if another rank renewed the slot before, and if there is a watcher the
// lanes must be collected now.
bool Board::publish(const Known& known, std::int32_t priority) {
  const bool may = !is_one_of_several_ && !is_watched() && is_current(known) && !any_left() &&
                   published_ - lane_collected_ < kSlots;
  if (!may) return false;
  Arrival& next = lanes_[rank_].next(published_++);
  next.place = known.place;
  next.generation = known.generation;
  next.priority = priority;
  next.number.store(static_cast<std::uint32_t>(published_), std::memory_order_release);
  // Pairs with those in add_watchers() and renew().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

bool Board::is_watched() const { return header_.watchers.load(std::memory_order_relaxed) != 0; }

bool Board::is_current(const Known& known) const {
  return generations_[known.place].load(std::memory_order_relaxed) == known.generation;
}

// Called under the lock, like all functions below.
std::optional<Board::Place> Board::arrive_in_slot(std::string_view name,
                                                  const Submission& submission, const Known* known,
                                                  const NamedTexts& texts) {
  if (header_.gone.load(std::memory_order_relaxed) != 0) throw HasLeft(header_.why_left);
  const bool is_new = known == nullptr || !is_current(*known);
  const auto place = is_new ? find_or_claim(name) : known->place;
  if (!place) return std::nullopt;
  Slot& mine = slot(*place);
  if (mine.ready) return std::nullopt;  // the last entry of its previous use is not logged yet
  bool agrees = !is_new || alike(mine.submission, submission);
  if (mine.arrived == 0 && !agrees) {
    // Some ranks may still read its submission.
    if (mine.entry > taken_by_all()) return std::nullopt;
    if (renew(*place)) {
      mine.submission = submission;
      mine.submission.form = NamedForm::kPlain;
      if (submission.structure != 0) set_structure(*place, texts.structure);
      agrees = true;
    }
  }
  std::string problem;
  if (!texts.why_refused.empty()) {
    problem = names_.of(rank_) + " has refused its arguments: " + texts.why_refused;
  } else if (!agrees && !mine.has_problem) {
    problem = difference(names_, {mine.submission, names_.of(mine.first), structure_of(*place)},
                         {submission, names_.of(rank_), texts.structure});
  }
  if (mine.entry != 0) mine.recurs = true;
  if (is_new && agrees && mine.entry != 0) remember(name, *place, submission);
  arrive_at(*place, rank_, submission.priority, submission.form, problem);
  return place;
}

void Board::remember(std::string_view name, Place place, const Submission& submission) {
  if (known_.size() >= 2 * kSlots) known_.clear();
  const std::uint32_t generation = generations_[place].load(std::memory_order_relaxed);
  known_.insert_or_assign(std::string(name), Known{place, generation, submission});
}

void Board::arrive_at(Place place, std::size_t rank, std::int32_t priority, NamedForm form,
                      const std::string& problem) {
  Slot& its = slot(place);
  check(!its.ready, "a rank submits a name again only when its last entry is in the log");
  if (its.arrived == 0) {
    its.first = static_cast<std::int32_t>(rank);
    its.priority = priority;
    its.form = NamedForm::kPlain;
    its.has_problem = its.is_missed = false;
  }
  if (!problem.empty()) set_problem(its, problem);
  its.priority = std::max(its.priority, priority);
  its.form = std::max(its.form, form);
  if (priority > header_.highest) header_.highest = priority;
  set_arrived(place, rank, true);
  ++its.arrived;
  if (is_complete(place)) become_ready(place, rank);
}

// Marks what is in the lanes as arrived, unless a rank has left, since then nothing is agreed on.
// `renewed`: a slot whose generation the caller has just increased; arrivals with the generation
// before count there.
void Board::collect(Place renewed) {
  const bool is_over = header_.gone.load(std::memory_order_relaxed) != 0;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    Lane& lane = lanes_[rank];
    for (std::uint64_t& count = collected_[rank]; lane.has(count); ++count) {
      if (is_over) continue;
      const Arrival& one = lane.next(count);
      const std::uint32_t generation = generations_[one.place].load(std::memory_order_relaxed);
      if (one.generation + (one.place == renewed ? 1 : 0) == generation) {
        arrive_at(one.place, rank, one.priority);
      } else {
        // That rank notices the new generation, takes the lock and arrives in the slot.
        dropped_[rank] = 1;
      }
    }
  }
  lane_collected_ = collected_[rank_];
}

bool Board::has_uncollected() const {
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (lanes_[rank].has(seen_collected_[rank])) return true;
  }
  return false;
}

// A watcher first counts itself and then looks at the lanes; a submitting rank first writes its
// lane and then looks at the count. With the fences, at least one of the two sees the other.
void Board::add_watchers(std::uint32_t more) {
  header_.watchers.fetch_add(more, std::memory_order_relaxed);
  if (static_cast<std::int32_t>(more) > 0) std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Board::look_at_lanes() {
  collect();
  std::copy_n(collected_, ranks_, seen_collected_.begin());
  wake_if_ready();
}

void Board::see_in_order(bool on) {
  const Lock lock(*this);
  if (std::exchange(in_order_, on) == on) return;
  add_watchers(on ? 1 : -1U);
  collect();
  wake_if_ready();
}

bool Board::retract(Place place) {
  const Lock lock(*this);
  collect();
  wake_if_ready();
  Slot& found = slot(place);
  if (found.ready || !has_arrived(place, rank_)) return false;
  set_arrived(place, rank_, false);
  --found.arrived;
  return true;
}

std::vector<std::string> Board::missing(Place place) {
  const Lock lock(*this);
  collect();
  wake_if_ready();
  std::vector<std::string> found;
  if (!has_arrived(place, rank_)) return found;  // its entry is in the log
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (!has_arrived(place, rank) && joined_[rank] == 0) found.push_back(names_.of(rank));
  }
  if (slot(place).is_missed) found.emplace_back(slot(place).elsewhere);
  return found;
}

}  // namespace gradred
