#include "coordinator/board.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/signature.h"
#include "base/text.h"

namespace gradred {
namespace {

constexpr std::uint32_t kChains = 8192;
constexpr std::size_t kLine = 64;
constexpr std::size_t kElsewhereBytes = 120;

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::uint64_t hash_of(std::string_view name) { return mix(0xcbf29ce484222325ULL, name); }

}  // namespace

static_assert(Board::kSlots < std::numeric_limits<std::uint16_t>::max(), "an index and 1 fit");

struct Board::Header {
  alignas(kLine) std::atomic<std::uint64_t> news;  // counts up where there is something to take
  Bell bell;
  alignas(kLine) std::atomic<std::uint32_t> owner;  // of the lock: its rank + 1
  // Under the lock, all of these. What most submissions write, in the lock's line:
  std::uint64_t logged;  // entries
  std::uint64_t rounds;
  std::uint64_t ahead_bytes;  // of entries that were not queued, and that no hungry rank has taken
  std::uint64_t batch_bytes;  // of the last batch of these
  std::uint32_t open;         // it may be joined: nobody has taken its entries
  // What they read:
  alignas(kLine) std::atomic<std::uint32_t> gone;  // a rank has left
  std::uint64_t most_fused_bytes;
  std::uint32_t queued;  // names
  std::int32_t highest;  // priority so far, or 0
  std::uint32_t joined;  // ranks
  std::uint32_t joins;   // those that wait behind the queue: 0 or 1
  // The rest:
  alignas(kLine) std::uint64_t closed;  // entries that a hungry rank has taken
  std::uint64_t turns;                  // names that were queued
  std::uint32_t hand;                   // where the search for a slot goes on
  std::int32_t last_joined;
  char why_left[240];
  // Of one of several boards:
  std::uint32_t first_ready, last_ready;  // slots that wait to be told; index + 1
  alignas(kLine) std::atomic<std::uint64_t> outgoing;
  Bell outgoing_bell;
  std::uint32_t asks_for_taken;  // is_taken() has said no
  std::uint32_t leaves;          // a rank has left, which is to be told
  std::uint32_t failure;         // of that rank; 0: none, else its kind and 1
  char why_leaves[240];
};

// What each submission writes makes a line, with the first word of the arrivals, which lies before
// it. The rest stays as it is while a name comes with the same arrays, and so in all ranks' caches.
struct Board::Slot {
  std::uint64_t hash;
  Round round;            // 0: no rank has arrived
  std::uint64_t entry;    // the number of its last one in the log, from 1
  std::uint32_t arrived;  // ranks
  std::uint32_t chunk;    // that is logged next
  std::int32_t first;     // the rank that came first
  std::int32_t last;      // with which it became ready
  std::int32_t priority;  // the highest
  std::uint16_t next;     // in its chain; index + 1
  std::uint16_t next_ready;
  bool used;         // it has a name
  bool ready;        // it is queued, or waits for the other sites
  bool in_chunks;    // as of a Submission
  bool has_problem;  // the text below
  bool is_missed;    // elsewhere

  Submission submission;  // of the first rank, without what stands above
  char name[kNameBytes];
  char problem[kProblemBytes];
  char elsewhere[kElsewhereBytes];  // ranks of other sites that have not submitted it
};

struct Board::Queued {
  Turn turn;
  std::uint32_t index;  // of its slot

  bool operator<(const Queued& other) const { return turn < other.turn; }
};

// One line, and what few entries have.
struct alignas(kLine) Board::Logged {
  Round round;
  BatchKey key;
  std::uint32_t chunk;
  std::int32_t last_joined;
  std::int32_t last;
  std::int32_t priority;
  std::uint32_t slot;  // that has the submission; kSlots: it is here
  bool in_chunks;
  bool joins;
  bool has_problem;
  bool is_last;
  bool some_lack;  // ranks that had joined have no submission

  Submission submission;
  char problem[kProblemBytes];
};

// Held for some hundred nanoseconds.
class Board::Lock {
 public:
  explicit Lock(const Board& board) : owner_(board.header_.owner) {
    const auto mine = static_cast<std::uint32_t>(board.rank_) + 1;
    for (unsigned tries = 1;; ++tries) {
      std::uint32_t free = owner_.load(std::memory_order_relaxed);
      if (free == 0 && owner_.compare_exchange_weak(free, mine, std::memory_order_acquire,
                                                    std::memory_order_relaxed)) {
        return;
      }
      if (tries % 64 == 0) sched_yield();
      if (tries % 65536 == 0 && board.look_) board.look_();
    }
  }
  ~Lock() { owner_.store(0, std::memory_order_release); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  std::atomic<std::uint32_t>& owner_;
};

std::size_t Board::bytes(std::size_t ranks) {
  static_assert(offsetof(Slot, submission) + sizeof(std::uint64_t) <= kLine);
  static_assert(offsetof(Logged, submission) <= kLine);
  const std::size_t words = (ranks + 63) / 64;
  return aligned(sizeof(Header)) + aligned(ranks * sizeof(std::uint64_t)) +
         aligned(ranks * sizeof(std::uint32_t)) + aligned(kChains * sizeof(std::uint16_t)) +
         aligned(kSlots * sizeof(Logged)) + aligned(kSlots * sizeof(Queued)) +
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
      is_one_of_several_(is_one_of_several) {
  std::byte* place = memory_ + aligned(sizeof(Header));
  const auto part = [&](auto*& pointer, std::size_t bytes) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(place);
    place += aligned(bytes);
  };
  part(taken_, ranks * sizeof(std::uint64_t));
  part(joined_, ranks * sizeof(std::uint32_t));
  part(heads_, kChains * sizeof(std::uint16_t));
  part(log_, kSlots * sizeof(Logged));
  part(queue_, kSlots * sizeof(Queued));
  slots_ = place;
  slot_bytes_ = aligned(words_ * sizeof(std::uint64_t) + sizeof(Slot));
  if (rank_ != 0) return;
  const Lock lock(*this);
  header_.most_fused_bytes = most_fused_bytes;  // rank 0's counts
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

// A rank that has joined may have arrived before.
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

// ---- names --------------------------------------------------------------------------------------

// kSlots: there is none.
std::uint32_t Board::find(std::string_view name, std::uint64_t hash) const {
  for (std::uint32_t next = heads_[hash % kChains]; next != 0; next = slot(next - 1).next) {
    const Slot& found = slot(next - 1);
    if (found.hash == hash && name == found.name) return next - 1;
  }
  return kSlots;
}

// A slot that no rank waits at, nor will look at for an entry.
std::optional<std::uint32_t> Board::claim(std::string_view name, std::uint64_t hash) {
  const std::uint64_t slowest = taken_by_all();
  for (std::uint32_t tried = 0; tried < kSlots; ++tried) {
    const std::uint32_t index = header_.hand++ % kSlots;
    Slot& found = slot(index);
    if (found.arrived != 0 || found.ready || found.entry > slowest) continue;
    if (found.used) unlink(index);
    found.used = true;
    found.hash = hash;
    set_text(found.name, name);
    found.next = std::exchange(heads_[hash % kChains], static_cast<std::uint16_t>(index + 1));
    return index;
  }
  return std::nullopt;
}

void Board::unlink(std::uint32_t index) {
  std::uint16_t* link = &heads_[slot(index).hash % kChains];
  while (*link != index + 1) link = &slot(*link - 1u).next;
  *link = slot(index).next;
}

std::optional<Board::Round> Board::arrive(std::string_view name, const Submission& submission) {
  std::string shortened;
  if (name.size() >= kNameBytes) {
    const std::string end = "..." + std::to_string(hash_of(name));
    shortened = std::string(name.substr(0, kNameBytes - 1 - end.size())) + end;
    name = shortened;
  }
  const std::uint64_t hash = hash_of(name);
  const Lock lock(*this);
  if (header_.gone.load(std::memory_order_relaxed) != 0) throw HasLeft(header_.why_left);
  std::uint32_t index = find(name, hash);
  if (index == kSlots) {
    const auto claimed = claim(name, hash);
    if (!claimed) return std::nullopt;
    index = *claimed;
  }
  Slot& mine = slot(index);
  if (mine.ready) return std::nullopt;  // the round before is not in the log yet
  if (mine.arrived == 0) {
    if (!alike(mine.submission, submission)) {
      if (mine.entry > taken_by_all()) return std::nullopt;  // some may still read it
      mine.submission = submission;
    }
    mine.round = ++header_.rounds;
    mine.first = static_cast<std::int32_t>(rank_);
    mine.priority = submission.priority;
    mine.has_problem = mine.is_missed = false;
  } else if (!mine.has_problem && !alike(mine.submission, submission)) {
    set_problem(mine,
                difference(mine.submission, names_.of(mine.first), submission, names_.of(rank_)));
  }
  mine.priority = std::max(mine.priority, submission.priority);
  if (submission.priority > header_.highest) header_.highest = submission.priority;
  const Round round = mine.round;
  set_arrived(index, rank_, true);
  ++mine.arrived;
  if (is_complete(index)) become_ready(index);
  return round;
}

bool Board::retract(Round round) {
  const Lock lock(*this);
  for (std::uint32_t index = 0; index < kSlots; ++index) {
    Slot& found = slot(index);
    if (found.round != round || found.arrived == 0 || found.ready) continue;
    if (!has_arrived(index, rank_)) return false;
    set_arrived(index, rank_, false);
    --found.arrived;
    return true;
  }
  return false;
}

std::vector<std::string> Board::missing(Round round) const {
  const Lock lock(*this);
  std::vector<std::string> found;
  for (std::uint32_t index = 0; index < kSlots; ++index) {
    if (slot(index).round != round || slot(index).arrived == 0) continue;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      if (!has_arrived(index, rank) && joined_[rank] == 0) found.push_back(names_.of(rank));
    }
    if (slot(index).is_missed) found.emplace_back(slot(index).elsewhere);
  }
  return found;
}

// ---- the log ------------------------------------------------------------------------------------

// A rank that has not taken what is in the log keeps its place; only one that has joined, or does
// not look, can fall so far behind that there is none.
bool Board::has_room(std::uint64_t entries) const {
  return header_.logged - taken_by_all() + entries <= kSlots;
}

std::uint64_t Board::taken_by_all() const { return *std::min_element(taken_, taken_ + ranks_); }

Board::Logged& Board::next_entry() { return log_[header_.logged++ % kSlots]; }

// That there is something to take, or to decide on. What is decided then is no news: who has not
// taken all that there is looks again when it is hungry.
void Board::wake() {
  header_.news.fetch_add(1, std::memory_order_release);
  ring_for_sleepers(header_.bell, nullptr);
}

void Board::become_ready(std::uint32_t index) {
  Slot& ready = slot(index);
  ready.ready = true;
  ready.chunk = 0;
  if (!is_one_of_several_) {
    ready.last = names_.number(rank_);
    ready.in_chunks = ready.priority < header_.highest;
    if (ready.arrived != ranks_ && !ready.has_problem) {
      set_problem(ready, why_not_joined(ready.submission));
    }
    if (append(index)) return wake();
    queue_[header_.queued++] = {{ready.priority, header_.turns++}, index};
    std::push_heap(queue_, queue_ + header_.queued);
    return wake();
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

// As all ranks have it.
Submission Board::agreed(std::uint32_t index) const {
  Submission made = slot(index).submission;
  made.priority = slot(index).priority;
  made.in_chunks = slot(index).in_chunks ? 1 : 0;
  return made;
}

// Small operations are not queued while nothing else is. False: this one must be.
bool Board::append(std::uint32_t index) {
  constexpr std::uint64_t kMostAhead = Submission::kChunkBytes / 8;
  const Slot& ready = slot(index);
  const std::uint64_t bytes = ready.submission.bytes;
  const bool may = header_.queued == 0 && header_.joins == 0 &&
                   header_.ahead_bytes + bytes <= kMostAhead && has_room();
  if (!may) return false;
  const Logged& before = log_[(header_.logged + kSlots - 1) % kSlots];
  const bool well = !ready.has_problem;
  const bool joins = header_.open != 0 && well &&
                     BatchKey::of(ready.submission).suits(before.key) &&
                     header_.batch_bytes + bytes <= header_.most_fused_bytes;
  header_.batch_bytes = joins ? header_.batch_bytes + bytes : bytes;
  header_.ahead_bytes += bytes;
  header_.open = well ? 1 : 0;
  log_slot(index, joins);
  return true;
}

// What comes next, of the bytes of a chunk or somewhat more, as far as there is room. The end of a
// join comes when nothing is queued.
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

// Its next chunk. There is room. With its last one the slot is free.
void Board::log_slot(std::uint32_t index, bool joins) {
  Slot& ready = slot(index);
  const Submission submission = agreed(index);
  Logged& entry = next_entry();
  entry.round = ready.round;
  entry.key = BatchKey::of(submission);
  entry.chunk = ready.chunk++;
  entry.last_joined = -1;
  entry.last = ready.last;
  entry.priority = ready.priority;
  entry.slot = index;
  entry.in_chunks = ready.in_chunks;
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
  free.round = 0;
  for (std::size_t word = 0; word < words_; ++word) {
    arrivals(index)[word].store(0, std::memory_order_relaxed);
  }
}

// An entry of what the coordinator says.
Board::Logged& Board::log_message(const SiteMessage& message, bool joins) {
  Logged& entry = next_entry();
  entry = Logged{};
  entry.key = BatchKey::of(message.submission);
  entry.chunk = message.chunk;
  entry.last_joined = entry.last = -1;
  entry.priority = message.submission.priority;
  entry.slot = kSlots;
  entry.in_chunks = message.submission.in_chunks != 0;
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
  joined_[rank_] = 1;
  ++header_.joined;
  header_.last_joined = names_.number(rank_);
  for (std::uint32_t index = 0; index < kSlots; ++index) {  // whom the others have waited for
    const Slot& one = slot(index);
    if (one.arrived != 0 && !one.ready && is_complete(index)) become_ready(index);
  }
  if (header_.joined == ranks_) {
    header_.joins = 1;
    is_one_of_several_ ? tell() : wake();
  }
}

void Board::append_join(int last) {
  SiteMessage message;
  message.submission.kind = NamedKind::kJoin;
  log_message(message, false).last_joined = last;
  header_.joined = 0;
  std::fill_n(joined_, ranks_, 0U);
}

bool Board::any(bool hungry) const {
  return header_.news.load(std::memory_order_acquire) != seen_ || (hungry && left_);
}

void Board::take(bool hungry, std::vector<Entry>& made) {
  made.clear();
  const Lock lock(*this);
  std::uint64_t& taken = taken_[rank_];
  if (hungry && taken == header_.logged && !is_one_of_several_) decide();
  seen_ = header_.news.load(std::memory_order_relaxed);
  made.reserve(header_.logged - taken);
  for (; taken < header_.logged; ++taken) {
    const Logged& entry = log_[taken % kSlots];
    Entry& one = made.emplace_back();
    one.round = entry.round;
    one.chunk = entry.chunk;
    one.is_last_chunk = entry.is_last;
    one.joins = entry.joins;
    one.in_chunks = entry.in_chunks;
    one.priority = entry.priority;
    one.last_joined = entry.last_joined;
    one.last = entry.last_joined != -1 ? entry.last_joined : entry.last;
    if (entry.has_problem) one.problem = entry.problem;
    if (!entry.some_lack && entry.slot != kSlots) continue;
    Submission agreed = entry.slot != kSlots ? slot(entry.slot).submission : entry.submission;
    agreed.priority = entry.priority;
    agreed.in_chunks = entry.in_chunks ? 1 : 0;
    one.submission = std::make_shared<const Submission>(agreed);
  }
  header_.open = 0;
  if (hungry) {
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
  if (!is_one_of_several_) return end(why);
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

// ---- one of several -----------------------------------------------------------------------------

void Board::tell() {
  if (!is_one_of_several_) return;
  header_.outgoing.fetch_add(1, std::memory_order_release);
  if (rank_ != 0) ring_for_sleepers(header_.outgoing_bell, nullptr);
}

std::vector<SiteMessage> Board::take_outgoing() {
  std::vector<SiteMessage> made;
  const Lock lock(*this);
  for (; header_.first_ready != 0; header_.first_ready = slot(header_.first_ready - 1).next_ready) {
    const Slot& ready = slot(header_.first_ready - 1);
    made.push_back({.kind = Said::kReady,
                    .some_joined = ready.arrived != ranks_,
                    .rank = names_.number(static_cast<std::size_t>(ready.first)),
                    .name = ready.name,
                    .text = ready.has_problem ? ready.problem : "",
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

bool Board::hear(std::span<const SiteMessage> messages) {
  const Lock lock(*this);
  const SiteMessage& first = messages.front();
  switch (first.kind) {
    case Said::kAgreed:
      if (!has_room(messages.size())) return false;
      for (const SiteMessage& one : messages) hear_agreed(one, &one != &first);
      wake();
      return true;
    case Said::kAllJoined:
      if (!has_room()) return false;
      append_join(first.rank);
      wake();
      return true;
    case Said::kWaits:
      hear_waits(first);
      return true;
    case Said::kLeft:
      end(first.text);
      return true;
    case Said::kReady:
    case Said::kJoined:
    case Said::kLacks:
      break;
  }
  throw TransportError("named operations: the coordinator has sent what only sites send");
}

// Ranks that have all joined have no slot of this name.
void Board::hear_agreed(const SiteMessage& message, bool joins) {
  const std::uint32_t index = find(message.name, hash_of(message.name));
  Logged& entry = log_message(message, joins);
  if (index == kSlots || !slot(index).ready) return;
  entry.round = slot(index).round;
  entry.last = slot(index).last;
  if (entry.is_last) set_free(index);
}

void Board::hear_waits(const SiteMessage& message) {
  const std::uint32_t index = find(message.name, hash_of(message.name));
  if (index == kSlots || slot(index).arrived == 0) return;
  std::string text;
  for (const std::int32_t rank : message.ranks) {
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
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
