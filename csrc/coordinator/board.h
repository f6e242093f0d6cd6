// What the ranks of one host have submitted by name, and the order in which all of them carry it
// out: a table of names and a log, in memory that they share.
//
// A name has a slot, with the ranks that have arrived at it. What is submitted for the first time
// is written there, under a lock. What comes again goes to its rank's lane, a list of slots that it
// alone writes and that needs no lock. Whoever has the lock next collects the lanes: marks their
// arrivals in the slots, and puts names at which all have arrived in a queue. A rank that runs out
// of work watches: it collects for the last time, and from then on all that submit collect at once,
// so that it hears of what it waits for. So nobody has to be woken for the ranks to agree, and
// while all are busy a name costs each of them a few bytes of memory of its own.
//
// The first rank that has nothing more to do moves the most urgent names from the queue to the log,
// of a large array one chunk. All ranks read the same log, and carry it out in its order: whatever
// the choice was, it is made once for all. What moves together, and suits, is one batch, and so one
// operation on every rank.
//
// Of a communicator over several sites (sites.h) each has a board. There the last rank to arrive
// hands the name out, to be told to the other sites; the queue is the coordinator's, and what it
// moves comes to the logs of all sites.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/bell.h"
#include "base/errors.h"
#include "base/rank_names.h"
#include "coordinator/sites.h"
#include "coordinator/submission.h"

namespace gradred {

// A rank has left, as the text says: nothing more is agreed on.
class HasLeft : public Error {
 public:
  using Error::Error;
};

class Board {
 public:
  static constexpr std::uint32_t kSlots = 4096;   // names under way at a time
  static constexpr std::size_t kNameBytes = 160;  // of longer names the end is a hash
  static constexpr std::size_t kProblemBytes = 360;

  // Of `ranks` that share `memory`, which is zero when the first of them looks at it; they have
  // `names`. `look` is called now and then while the lock cannot be had, and throws where its owner
  // has died. One thread of a rank uses it at a time, and beside it one that speaks with other
  // sites.
  static std::size_t bytes(std::size_t ranks);
  Board(std::byte* memory, std::size_t ranks, std::size_t rank, std::uint64_t most_fused_bytes,
        RankNames names, std::function<void()> look, bool is_one_of_several = false);

  // Where a name stands from its first submission to its entry in the log: what a rank has
  // submitted and not yet taken it knows by this.
  using Place = std::uint32_t;

  // This rank has its array. nullopt: there is no room for the name now. Throws Error once a rank
  // has left. `why_refused`: of a refusal, for the other ranks.
  std::optional<Place> arrive(std::string_view name, const Submission& submission,
                              std::string_view why_refused = {});
  // Takes that back, unless all have arrived: then false.
  bool retract(Place place);
  // From now on this rank takes part in whatever the others submit, until all have joined.
  void join();
  // This rank submits nothing any more; whatever is not in the log will never be.
  void leave(std::string_view why, std::optional<Failure> failure = std::nullopt);
  bool any_left() const;
  std::string why_left() const;

  struct Entry {
    Place place = kSlots;  // kSlots: no rank of this site has submitted it
    std::uint32_t chunk = 0;
    bool is_last_chunk = true;
    bool joins = false;      // the batch of the entry before
    bool in_chunks = false;  // as of the submission, which is this rank's but for these two
    std::int32_t priority = 0;
    int last_joined = -1;   // of a join
    int last = -1;          // the rank that submitted it last; -1: unknown
    std::string problem{};  // it ends with this error; empty: there is none
    std::shared_ptr<const Submission> submission{};  // where some ranks have none

    bool is_join() const { return last_joined != -1; }
  };
  // Whether there may be something for this rank to take. `hungry`: it has too little to do.
  bool any(bool hungry = true) const;
  // Entries that this rank has not taken, in the order of the log: whole batches. If it is hungry,
  // and there are none, what comes next is decided. `then_watch`: if there is nothing even so, this
  // rank watches, until it has taken something.
  std::vector<Entry> take(bool hungry = true, bool then_watch = false) {
    std::vector<Entry> made;
    take(hungry, then_watch, made);
    return made;
  }
  // In the place of what is in there.
  void take(bool hungry, bool then_watch, std::vector<Entry>& made);
  // Whether a hungry rank has left something, for which there was no room in the log.
  bool waits_for_room() const { return left_; }
  // Whether the others tell this rank of what there is to take.
  bool is_watching() const { return watches_ || is_one_of_several_; }
  // Changes when there is more to take, or a rank leaves; for who watches and has taken all.
  Awaited news() const;
  // While it is on every rank's arrivals are seen one by one, in their order in time.
  void see_in_order(bool on);

  // The ranks that a name of this rank's waits for, by name; empty: for none, or it is unknown.
  std::vector<std::string> missing(Place place);

  // Of one of several boards, for who speaks with the other sites. What is to be told to them:
  std::vector<SiteMessage> take_outgoing();
  // Changes when there is something. Rank 0's own calls ring no bell: it looks after them itself.
  Awaited outgoing() const;
  void ring_outgoing();  // wakes who waits for that
  // What the coordinator says: one message, or the entries of a batch. False: there is no room in
  // the log, try again later.
  bool hear(std::span<const SiteMessage> messages);
  // Whether a rank has taken what was heard, and is hungry; if not, outgoing() changes when one is.
  bool is_taken();
  // Ranks of this site that have not submitted a name, by their numbers in the communicator.
  std::vector<std::int32_t> lacking(std::string_view name) const;

 private:
  static constexpr std::uint32_t kChains = 8192;
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kElsewhereBytes = 120;

  struct Header;  // board_layout.h
  struct Arrival;
  struct Lane;
  struct Slot;
  struct Logged;
  struct Queued;
  class Lock;
  // What this rank has submitted before.
  struct Known {
    Place place = kSlots;
    std::uint32_t generation = 0;
    Submission submission{};
  };
  struct HashOfName {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>()(name);
    }
  };

  static constexpr std::size_t aligned(std::size_t bytes) {
    return (bytes + kLine - 1) / kLine * kLine;
  }
  static std::uint64_t hash_of(std::string_view name);
  Slot& slot(std::uint32_t index) const;
  std::atomic<std::uint64_t>* arrivals(std::uint32_t index) const;
  std::uint32_t find(std::string_view name, std::uint64_t hash) const;
  std::optional<std::uint32_t> claim(std::string_view name, std::uint64_t hash);
  std::optional<std::uint32_t> find_or_claim(std::string_view name);
  void unlink(std::uint32_t index);
  bool renew(std::uint32_t index);
  bool publish(const Known& known, std::int32_t priority);
  bool is_current(const Known& known) const;
  bool is_watched() const;
  std::optional<Place> arrive_in_slot(std::string_view name, const Submission& submission,
                                      const Known* known, std::string_view why_refused);
  void remember(std::string_view name, Place place, const Submission& submission);
  void arrive_at(Place place, std::size_t rank, std::int32_t priority,
                 const std::string& problem = {});
  void collect(Place renewed = kSlots);
  bool has_uncollected() const;
  void look_at_lanes();
  void take_logged(bool hungry, std::vector<Entry>& made);
  void add_watchers(std::uint32_t more);
  bool has_arrived(std::uint32_t index, std::size_t rank) const;
  bool is_complete(std::uint32_t index) const;
  void set_arrived(std::uint32_t index, std::size_t rank, bool here);
  void become_ready(std::uint32_t index, std::size_t last);
  bool append(std::uint32_t index);
  void decide();
  static void set_problem(Slot& slot, const std::string& text);
  Submission agreed(std::uint32_t index) const;
  void log_slot(std::uint32_t index, bool joins);
  void set_free(std::uint32_t index);
  Logged& log_message(const SiteMessage& message, bool joins);
  void append_join(int last);
  void tell();
  void hear_agreed(const SiteMessage& message, bool joins);
  void hear_waits(const SiteMessage& message);
  void end(std::string_view why);
  bool has_room(std::uint64_t entries = 1) const;
  std::uint64_t taken_by_all() const;  // entries
  Logged& next_entry();
  void wake();
  void wake_if_ready();

  std::byte* const memory_;
  const std::size_t ranks_, rank_, words_;  // of a bit for each rank
  Header& header_;
  std::uint64_t* taken_;      // by rank: entries
  std::uint64_t* collected_;  // by rank: arrivals of its lane
  std::uint32_t* joined_;     // by rank
  std::uint32_t* dropped_;  // by rank: 1: its last arrival came too late, to a slot renewed before
  Lane* lanes_;             // by rank
  std::atomic<std::uint32_t>* generations_;  // by slot: counts up with its name and submission
  std::uint16_t* heads_;                     // of the chains of slots, by hash; index + 1
  Logged* log_;
  Queued* queue_;  // a heap
  std::byte* slots_;
  std::size_t slot_bytes_;
  const RankNames names_;
  const std::function<void()> look_;
  const bool is_one_of_several_;
  std::unordered_map<std::string, Known, HashOfName, std::equal_to<>> known_;
  bool ready_ = false;    // something has become ready of which nobody has been told
  bool watches_ = false;  // this rank
  bool in_order_ = false;
  // What this rank submits next is the first since it took something. It may wait for that one at
  // once: then it is quicker to have it in its slot.
  bool is_first_ = true;
  std::uint64_t published_ = 0;       // arrivals in this rank's lane
  std::uint64_t lane_collected_ = 0;  // of these, at least
  // This rank's last look:
  std::uint64_t seen_ = 0;                     // of the news
  std::vector<std::uint64_t> seen_collected_;  // arrivals, by rank
  bool left_ = false;                          // there was more to take, for who is hungry
};

}  // namespace gradred
