#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "base/signature.h"
#include "base/text.h"
#include "named/board.h"
#include "named/board_layout.h"

namespace gradred {

std::size_t Board::bytes(std::size_t ranks) {
  static_assert(offsetof(Slot, submission) + sizeof(std::uint64_t) <= kLine);
  static_assert(offsetof(Logged, submission) <= kLine);
  const std::size_t words = (ranks + 63) / 64;
  return aligned(sizeof(Header)) + aligned(ranks * sizeof(std::uint64_t)) +
         aligned(ranks * sizeof(std::uint64_t)) + 2 * aligned(ranks * sizeof(std::uint32_t)) +
         ranks * sizeof(Lane) + aligned(kSlots * sizeof(std::uint32_t)) +
         aligned(kChains * sizeof(std::uint16_t)) + aligned(kSlots * sizeof(Logged)) +
         aligned(kSlots * sizeof(Queued)) + aligned(kStructures * sizeof(Structure)) +
         kSlots * aligned(words * sizeof(std::uint64_t) + sizeof(Slot));
}

Board::Board(std::byte* memory, std::size_t ranks, std::size_t rank, std::uint64_t most_fused_bytes,
             RankNames names, std::function<void()> look, bool is_one_of_several)
    : memory_(memory),
      ranks_(ranks),
      rank_(rank),
      words_((ranks + 63) / 64),
      header_(*reinterpret_cast<Header*>(memory)),
      names_(std::move(names)),
      look_(std::move(look)),
      is_one_of_several_(is_one_of_several),
      seen_collected_(ranks) {
  std::byte* place = memory_ + aligned(sizeof(Header));
  const auto part = [&](auto*& pointer, std::size_t bytes) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(place);
    place += aligned(bytes);
  };
  part(taken_, ranks * sizeof(std::uint64_t));
  part(collected_, ranks * sizeof(std::uint64_t));
  part(joined_, ranks * sizeof(std::uint32_t));
  part(dropped_, ranks * sizeof(std::uint32_t));
  part(lanes_, ranks * sizeof(Lane));
  part(generations_, kSlots * sizeof(std::uint32_t));
  part(heads_, kChains * sizeof(std::uint16_t));
  part(log_, kSlots * sizeof(Logged));
  part(queue_, kSlots * sizeof(Queued));
  part(structures_, kStructures * sizeof(Structure));
  slots_ = place;
  slot_bytes_ = aligned(words_ * sizeof(std::uint64_t) + sizeof(Slot));
  if (rank_ != 0) return;
  const Lock lock(*this);
  header_.most_fused_bytes = most_fused_bytes;  // rank 0's value applies to all ranks
}

Board::Slot& Board::slot(std::uint32_t index) const {
  return *reinterpret_cast<Slot*>(slots_ + index * slot_bytes_ + words_ * sizeof(std::uint64_t));
}

std::atomic<std::uint64_t>* Board::arrivals(std::uint32_t index) const {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(slots_ + index * slot_bytes_);
}

bool Board::has_arrived(std::uint32_t index, std::size_t rank) const {
  return (arrivals(index)[rank / 64].load(std::memory_order_relaxed) >> rank % 64 & 1) != 0;
}

// A rank may have arrived at the slot before it joined, so the two counts may overlap.
bool Board::is_complete(std::uint32_t index) const {
  const std::uint32_t arrived = slot(index).arrived;
  if (arrived == ranks_ || arrived + header_.joined < ranks_) return arrived == ranks_;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (!has_arrived(index, rank) && joined_[rank] == 0) return false;
  }
  return true;
}

void Board::set_arrived(std::uint32_t index, std::size_t rank, bool here) {
  std::atomic<std::uint64_t>& word = arrivals(index)[rank / 64];
  const std::uint64_t bit = std::uint64_t{1} << rank % 64;
  const std::uint64_t before = word.load(std::memory_order_relaxed);
  word.store(here ? before | bit : before & ~bit, std::memory_order_relaxed);
}

std::uint64_t Board::hash_of(std::string_view name) { return mix(0xcbf29ce484222325ULL, name); }

// ---- names --------------------------------------------------------------------------------------

// Returns kSlots if no slot has this name.
std::uint32_t Board::find(std::string_view name, std::uint64_t hash) const {
  const auto is_at = [&](std::uint32_t index) {
    const Slot& found = slot(index);
    return found.hash == hash && name == found.name;
  };
  for (std::uint32_t index = 0; index < kOfNewNames; ++index) {
    if (is_at(index)) return index;
  }
  for (std::uint32_t next = heads_[hash % kChains]; next != 0; next = slot(next - 1).next) {
    if (is_at(next - 1)) return next - 1;
  }
  return kSlots;
}

// Takes a slot at which no rank waits and whose log entry every rank has taken. First come a few
// slots for names that come once only, as those of torch.distributed: they stay in the caches, and
// are in no chain. No rank remembers a name that has come once.
std::optional<std::uint32_t> Board::claim(std::string_view name, std::uint64_t hash) {
  const std::uint64_t slowest = taken_by_all();
  for (std::uint32_t tried = 0; tried < kOfNewNames + kSlots; ++tried) {
    const std::uint32_t index = tried < kOfNewNames ? tried : header_.hand++ % kSlots;
    Slot& found = slot(index);
    if (found.arrived != 0 || found.ready || found.entry > slowest) continue;
    if (tried < kOfNewNames && found.recurs) continue;
    if (found.recurs && !renew(index)) continue;
    if (found.used) unlink(index);
    found.used = true;
    found.recurs = false;
    found.entry = 0;
    found.hash = hash;
    set_text(found.name, name);
    link(index);
    return index;
  }
  return std::nullopt;
}

void Board::link(std::uint32_t index) {
  if (index < kOfNewNames) return;
  std::uint16_t& head = heads_[slot(index).hash % kChains];
  slot(index).next = std::exchange(head, static_cast<std::uint16_t>(index + 1));
}

void Board::unlink(std::uint32_t index) {
  if (index < kOfNewNames) return;
  std::uint16_t* link = &heads_[slot(index).hash % kChains];
  while (*link != index + 1) link = &slot(*link - 1u).next;
  *link = slot(index).next;
}

namespace {

// A long text goes on in the memory of other slots, far from each other: names that are submitted
// at one time have neighbouring slots. The step is odd, so it meets all slots.
std::uint32_t holder_of(std::uint32_t index, std::uint32_t piece) { return index + 41 * piece; }

}  // namespace

// Of a text that others have replaced in part, the beginning; empty if nothing remains.
std::string Board::structure_of(std::uint32_t index) const {
  std::string made;
  for (std::uint32_t piece = 0; piece < kStructures; ++piece) {
    const Structure& one = structures_[holder_of(index, piece) % kStructures];
    if (one.owner != index + 1) break;
    const std::string_view text(one.text, strnlen(one.text, kStructureBytes));
    made += text;
    if (text.size() < kStructureBytes) break;
  }
  return made;
}

void Board::set_structure(std::uint32_t index, std::string_view text) {
  constexpr std::uint32_t kMostPieces = 32;
  for (std::uint32_t piece = 0; piece < kMostPieces; ++piece) {
    Structure& one = structures_[holder_of(index, piece) % kStructures];
    one.owner = index + 1;
    const std::size_t bytes = text.copy(one.text, kStructureBytes);
    if (bytes < kStructureBytes) {
      one.text[bytes] = 0;
      return;
    }
    text.remove_prefix(bytes);
  }
}

std::optional<std::uint32_t> Board::find_or_claim(std::string_view name) {
  std::string shortened;
  if (name.size() >= kNameBytes) {
    const std::string end = "..." + std::to_string(hash_of(name));
    shortened = std::string(name.substr(0, kNameBytes - 1 - end.size())) + end;
    name = shortened;
  }
  const std::uint64_t hash = hash_of(name);
  const std::uint32_t found = find(name, hash);
  return found != kSlots ? found : claim(name, hash);
}

// Prepares a slot for another name or other arrays: what ranks know of it becomes invalid. Returns
// false if a rank has arrived there meanwhile; the slot then stays as it is.
bool Board::renew(std::uint32_t index) {
  generations_[index].fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // as in add_watchers()
  collect(index);
  return slot(index).arrived == 0;
}

// ---- the log ------------------------------------------------------------------------------------

// An entry stays in the log until every rank has taken it. Only a rank that has joined, or that
// makes no calls, can fall so far behind that the log is full.
bool Board::has_room(std::uint64_t entries) const {
  return header_.logged - taken_by_all() + entries <= kSlots;
}

std::uint64_t Board::taken_by_all() const { return *std::min_element(taken_, taken_ + ranks_); }

Board::Logged& Board::next_entry() { return log_[header_.logged++ % kSlots]; }

// Notifies the ranks that there is something to take, or to decide on. Deciding itself does not
// notify: a rank that has not taken all entries looks again when it has capacity.
void Board::wake() {
  header_.news.fetch_add(1, std::memory_order_release);
  ring_for_sleepers(header_.bell, nullptr);
}

// Notifies the ranks once for all names that have become ready.
void Board::wake_if_ready() {
  if (std::exchange(ready_, false)) wake();
}

void Board::become_ready(std::uint32_t index, std::size_t last) {
  Slot& ready = slot(index);
  ready.ready = true;
  ready.chunk = 0;
  if (!is_one_of_several_) {
    ready.last = names_.number(last);
    if (ready.form == NamedForm::kPlain && ready.priority < header_.highest) {
      ready.form = NamedForm::kInChunks;
    }
    if (ready.arrived != ranks_ && !ready.has_problem) {
      set_problem(ready, why_not_joined(ready.submission));
    }
    ready_ = true;
    if (append(index)) return;
    queue_[header_.queued++] = {{ready.priority, header_.turns++}, index};
    std::push_heap(queue_, queue_ + header_.queued);
    return;
  }
  ready.last = -1;
  ready.next_ready = 0;
  if (header_.last_ready == 0) {
    header_.first_ready = index + 1;
  } else {
    slot(header_.last_ready - 1).next_ready = static_cast<std::uint16_t>(index + 1);
  }
  header_.last_ready = index + 1;
  tell();
}

void Board::set_problem(Slot& slot, const std::string& text) {
  slot.has_problem = !text.empty();
  if (slot.has_problem) set_text(slot.problem, text);
}

// The submission with the priority and form that all ranks agreed on.
Submission Board::agreed(std::uint32_t index) const {
  Submission made = slot(index).submission;
  made.priority = slot(index).priority;
  made.form = slot(index).form;
  return made;
}

// Logs a small operation at once if the queue is empty. Returns false if it must be queued.
bool Board::append(std::uint32_t index) {
  constexpr std::uint64_t kMostAhead = Submission::kChunkBytes / 8;
  const Slot& ready = slot(index);
  const std::uint64_t bytes = ready.submission.bytes;
  const bool may = header_.queued == 0 && header_.joins == 0 &&
                   header_.ahead_bytes + bytes <= kMostAhead && has_room();
  if (!may) return false;
  const Logged& before = log_[(header_.logged + kSlots - 1) % kSlots];
  const bool well = !ready.has_problem;
  const bool joins = header_.open != 0 && well && ready.form != NamedForm::kAlone &&
                     BatchKey::of(ready.submission).suits(before.key) &&
                     header_.batch_bytes + bytes <= header_.most_fused_bytes;
  header_.batch_bytes = joins ? header_.batch_bytes + bytes : bytes;
  header_.ahead_bytes += bytes;
  header_.open = well ? 1 : 0;
  log_slot(index, joins);
  return true;
}

// Moves the next entries from the queue to the log: at least a chunk's bytes, as far as there are
// so many and the log has room. The end of a join is logged when the queue is empty.
void Board::decide() {
  Batching batching(header_.most_fused_bytes);
  std::uint64_t bytes = 0;
  while (header_.queued != 0 && bytes < Submission::kChunkBytes && has_room()) {
    const std::uint32_t index = queue_[0].index;
    const Slot& next = slot(index);
    const Submission submission = agreed(index);
    bytes += submission.bytes_of(next.chunk);
    log_slot(index, batching.add(submission, !next.has_problem));
    if (!next.ready) std::pop_heap(queue_, queue_ + header_.queued--);
  }
  if (header_.queued == 0 && header_.joins != 0 && has_room()) {
    header_.joins = 0;
    append_join(header_.last_joined);
  }
}

// Logs the next chunk of a slot; the log must have room. The last chunk frees the slot.
void Board::log_slot(std::uint32_t index, bool joins) {
  Slot& ready = slot(index);
  const Submission submission = agreed(index);
  Logged& entry = next_entry();
  entry.place = index;
  entry.key = BatchKey::of(submission);
  entry.chunk = ready.chunk++;
  entry.last_joined = -1;
  entry.last = ready.last;
  entry.priority = ready.priority;
  entry.slot = index;
  entry.form = ready.form;
  entry.joins = joins;
  entry.some_lack = ready.arrived != ranks_;
  entry.has_problem = ready.has_problem;
  if (entry.has_problem) set_text(entry.problem, ready.problem);
  entry.is_last = entry.has_problem || ready.chunk == submission.chunks();
  ready.entry = header_.logged;
  if (entry.is_last) set_free(index);
}

void Board::set_free(std::uint32_t index) {
  Slot& free = slot(index);
  free.ready = false;
  free.arrived = 0;
  for (std::size_t word = 0; word < words_; ++word) {
    arrivals(index)[word].store(0, std::memory_order_relaxed);
  }
}

// Logs an entry that the coordinator has sent.
Board::Logged& Board::log_message(const HostGroupMessage& message, bool joins) {
  Logged& entry = next_entry();
  entry = Logged{};
  entry.key = BatchKey::of(message.submission);
  entry.chunk = message.chunk;
  entry.last_joined = entry.last = -1;
  entry.priority = message.submission.priority;
  entry.slot = entry.place = kSlots;
  entry.form = message.submission.form;
  entry.joins = joins;
  entry.submission = message.submission;
  entry.has_problem = !message.text.empty();
  if (entry.has_problem) set_text(entry.problem, message.text);
  entry.is_last = entry.has_problem || message.chunk + 1 == message.submission.chunks();
  return entry;
}

void Board::join() {
  const Lock lock(*this);
  if (header_.gone.load(std::memory_order_relaxed) != 0) throw HasLeft(header_.why_left);
  collect();
  joined_[rank_] = 1;
  ++header_.joined;
  header_.last_joined = names_.number(rank_);
  // Names that were waiting for this rank alone become ready.
  for (std::uint32_t index = 0; index < kSlots; ++index) {
    const Slot& one = slot(index);
    if (one.arrived != 0 && !one.ready && is_complete(index)) become_ready(index, rank_);
  }
  if (header_.joined == ranks_) {
    header_.joins = 1;
    is_one_of_several_ ? tell() : wake();
  }
  wake_if_ready();
}

void Board::append_join(int last) {
  HostGroupMessage message;
  message.submission.kind = NamedKind::kJoin;
  log_message(message, false).last_joined = last;
  header_.joined = 0;
  std::fill_n(joined_, ranks_, 0U);
}

bool Board::any(bool wants_work) const {
  if (header_.news.load(std::memory_order_acquire) != seen_) return true;
  return wants_work && (left_ || (!watches_ && has_uncollected()));
}

void Board::take(bool wants_work, bool then_watch, std::vector<Entry>& made) {
  made.clear();
  const Lock lock(*this);
  is_first_ = true;
  look_at_lanes();
  take_logged(wants_work, made);
  if (!made.empty()) {
    if (std::exchange(watches_, false)) add_watchers(-1U);
  } else if (then_watch && !is_watching()) {
    watches_ = true;
    add_watchers(1);
    look_at_lanes();
  }
}

void Board::take_logged(bool wants_work, std::vector<Entry>& made) {
  std::uint64_t& taken = taken_[rank_];
  if (wants_work && taken == header_.logged && !is_one_of_several_) decide();
  seen_ = header_.news.load(std::memory_order_relaxed);
  made.reserve(header_.logged - taken);
  for (; taken < header_.logged; ++taken) {
    const Logged& entry = log_[taken % kSlots];
    Entry& one = made.emplace_back();
    one.place = entry.place;
    one.chunk = entry.chunk;
    one.is_last_chunk = entry.is_last;
    one.joins = entry.joins;
    one.form = entry.form;
    one.priority = entry.priority;
    one.last_joined = entry.last_joined;
    one.last = entry.last_joined != -1 ? entry.last_joined : entry.last;
    if (entry.has_problem) one.problem = entry.problem;
    if (!entry.some_lack && entry.slot != kSlots) continue;
    Submission agreed = entry.slot != kSlots ? slot(entry.slot).submission : entry.submission;
    agreed.priority = entry.priority;
    agreed.form = entry.form;
    one.submission = std::make_shared<const Submission>(agreed);
  }
  header_.open = 0;
  if (wants_work) {
    header_.closed = header_.logged;
    header_.ahead_bytes = 0;
    if (std::exchange(header_.asks_for_taken, 0U) != 0) tell();
  }
  left_ = is_one_of_several_ ? header_.closed != header_.logged
                             : header_.queued != 0 || header_.joins != 0;
}

Awaited Board::news() const { return {&header_.news, seen_ + 1, &header_.bell, nullptr}; }

void Board::leave(std::string_view why, std::optional<Failure> failure) {
  const Lock lock(*this);
  if (!is_one_of_several_) {
    collect();  // names that all ranks have submitted are carried out all the same
    wake_if_ready();
    return end(why);
  }
  if (header_.leaves != 0 || header_.gone.load(std::memory_order_relaxed) != 0) return;
  header_.leaves = 1;
  header_.failure = failure ? static_cast<std::uint32_t>(*failure) + 1 : 0;
  set_text(header_.why_leaves, why);
  tell();
}

void Board::end(std::string_view why) {
  if (header_.gone.load(std::memory_order_relaxed) != 0) return;
  set_text(header_.why_left, why);
  header_.gone.store(1, std::memory_order_relaxed);
  wake();
}

bool Board::any_left() const { return header_.gone.load(std::memory_order_acquire) != 0; }

std::string Board::why_left() const {
  const Lock lock(*this);
  return header_.why_left;
}

}  // namespace gradred
