// Board: the names that the ranks of one host have submitted, and the order in which all of them
// carry the operations out. It is a table of names and a log, both in memory that the ranks share.
//
// Each name has a slot, which records the ranks that have arrived at it. A rank writes its first
// submission of a name into the slot, under the board's lock. When it submits the name again it
// only appends to its lane: a ring of arrivals that this rank alone writes, without a lock.
// Whichever rank holds the lock next collects the lanes: it marks their arrivals in the slots, and
// it queues the names at which all ranks have arrived. A rank that runs out of work becomes a
// watcher: it collects once more, and from then on every rank that submits takes the lock and
// collects at once. So the watcher learns of the names that it waits for. The ranks therefore agree
// without waking each other, and while all are busy a submission costs a few bytes written to
// memory of the rank's own.
//
// The first rank that runs out of work moves the most urgent names from the queue to the log; of a
// large array it moves one chunk. All ranks read the same log and carry it out in its order, so the
// order is chosen once for all ranks. Entries that are moved together and have the same BatchKey
// form one batch, which is one operation on every rank.
//
// A communicator over several host groups (coordinator.h) has one board for each of them. There the
// last rank to arrive at a name puts it on the list for the coordinator. The coordinator has the
// queue, and what it decides is written to the logs of all host groups.
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
#include "named/coordinator.h"
#include "named/submission.h"

namespace gradred {

// Thrown when a rank has left, with the reason as its text: the ranks agree on nothing more.
class HasLeft : public Error {
 public:
  using Error::Error;
};

class Board {
 public:
  static constexpr std::uint32_t kSlots = 4096;   // names in use at a time
  static constexpr std::size_t kNameBytes = 160;  // the end of a longer name is replaced by a hash
  static constexpr std::size_t kProblemBytes = 360;
  static constexpr std::size_t kStructureBytes = 4080;  // a longer text takes several

  // `memory` is shared by `ranks` ranks, called `names`, and is zero before the first of them uses
  // it. `look` is called now and then while another rank holds the lock; it throws if that rank's
  // process has ended. At a rank, one thread uses the board at a time; only the relay's threads,
  // which talk to the other host groups, may use it beside that one.
  static std::size_t bytes(std::size_t ranks);
  Board(std::byte* memory, std::size_t ranks, std::size_t rank, std::uint64_t most_fused_bytes,
        RankNames names, std::function<void()> look, bool is_one_of_several = false);

  // A slot's index. From a rank's submission of a name until the rank takes the name's last log
  // entry, the index identifies the operation.
  using Place = std::uint32_t;

  // This rank submits `name`. Returns nullopt if there is no room for the name now; throws HasLeft
  // once a rank has left.
  std::optional<Place> arrive(std::string_view name, const Submission& submission,
                              const NamedTexts& texts = {});
  // Takes this rank's arrival back. Returns false if all ranks have arrived, which makes it too
  // late.
  bool retract(Place place);
  // From now on this rank takes part in whatever the others submit, until all ranks have joined.
  void join();
  // This rank leaves: it submits nothing any more. Names that not all ranks have submitted by then
  // end with an error on every rank.
  void leave(std::string_view why, std::optional<Failure> failure = std::nullopt);
  bool any_left() const;
  std::string why_left() const;

  struct Entry {
    Place place = kSlots;  // kSlots: no rank of this host group has submitted it
    std::uint32_t chunk = 0;
    bool is_last_chunk = true;
    bool joins = false;  // belongs to the batch of the entry before
    // `priority` and `form` as all ranks agreed on them; all other fields of the submission
    // are the same as in this rank's own.
    NamedForm form = NamedForm::kPlain;
    std::int32_t priority = 0;
    int last_joined = -1;   // the last rank that joined, for the entry that ends a join; else -1
    int last = -1;          // the rank that submitted it last; -1: unknown
    std::string problem{};  // the error with which it ends; empty: none
    // Set if some ranks, which have joined, have no submission of their own.
    std::shared_ptr<const Submission> submission{};

    bool is_join() const { return last_joined != -1; }
  };
  // Whether there may be entries for this rank to take. `wants_work`: this rank has capacity for
  // more work.
  bool any(bool wants_work = true) const;
  // Returns whole batches that this rank has not taken, in the order of the log. If there are none
  // and this rank `wants_work` (has capacity for more), it first decides what comes next.
  // `then_watch`: if there still is nothing, this rank becomes a watcher until it has taken
  // something.
  std::vector<Entry> take(bool wants_work = true, bool then_watch = false) {
    std::vector<Entry> made;
    take(wants_work, then_watch, made);
    return made;
  }
  // As take() above, into `made`, whose previous contents are dropped.
  void take(bool wants_work, bool then_watch, std::vector<Entry>& made);
  // Whether names were left in the queue because the log had no room for them.
  bool waits_for_room() const { return left_; }
  // Whether other ranks notify this one when there is something to take.
  bool is_watching() const { return watches_ || is_one_of_several_; }
  // Changes when there is more to take or when a rank leaves. For a watcher that has taken all
  // entries.
  Awaited news() const;
  // While this is on, every rank collects at each submission, so arrivals are recorded in the order
  // in which they happen.
  void see_in_order(bool on);

  // Names of the ranks that have not yet submitted what is at `place`. Empty if all have, or if
  // this is unknown.
  std::vector<std::string> missing(Place place);

  // For the relay, if this board is one of several. Takes the messages for the coordinator.
  std::vector<HostGroupMessage> take_outgoing();
  // Changes when there are such messages. Rank 0 does not ring the bell for its own submissions: it
  // calls Relay::carry() after them.
  Awaited outgoing() const;
  void ring_outgoing();  // wakes the thread that waits for outgoing()
  // Writes what the coordinator has sent: one message, or all entries of a batch. Returns false if
  // the log has no room; the caller then tries again later.
  bool receive(std::span<const HostGroupMessage> messages);
  // Whether a rank with capacity has taken everything that receive() wrote. If not, outgoing()
  // changes when one has.
  bool is_taken();
  // Ranks of this host group that have not submitted `name`, by their numbers in the communicator.
  std::vector<std::int32_t> lacking(std::string_view name) const;

 private:
  static constexpr std::uint32_t kChains = 8192;
  static constexpr std::uint32_t kOfNewNames = 8;  // slots, at the begin
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kElsewhereBytes = 120;
  static constexpr std::uint32_t kStructures = 256;

  struct Header;  // board_layout.h
  struct Arrival;
  struct Lane;
  struct Slot;
  struct Structure;
  struct Logged;
  struct Queued;
  class Lock;
  // What this rank has submitted before, by name.
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
  void link(std::uint32_t index);
  void unlink(std::uint32_t index);
  std::string structure_of(std::uint32_t index) const;
  void set_structure(std::uint32_t index, std::string_view text);
  bool renew(std::uint32_t index);
  bool publish(const Known& known, std::int32_t priority);
  bool is_current(const Known& known) const;
  bool is_watched() const;
  std::optional<Place> arrive_in_slot(std::string_view name, const Submission& submission,
                                      const Known* known, const NamedTexts& texts);
  void remember(std::string_view name, Place place, const Submission& submission);
  void arrive_at(Place place, std::size_t rank, std::int32_t priority,
                 NamedForm form = NamedForm::kPlain, const std::string& problem = {});
  void collect(Place renewed = kSlots);
  bool has_uncollected() const;
  void look_at_lanes();
  void take_logged(bool wants_work, std::vector<Entry>& made);
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
  Logged& log_message(const HostGroupMessage& message, bool joins);
  void append_join(int last);
  void tell();
  void receive_agreed(const HostGroupMessage& message, bool joins);
  void receive_waits(const HostGroupMessage& message);
  void end(std::string_view why);
  bool has_room(std::uint64_t entries = 1) const;
  std::uint64_t taken_by_all() const;  // entries
  Logged& next_entry();
  void wake();
  void wake_if_ready();

  std::byte* const memory_;
  const std::size_t ranks_, rank_, words_;  // 64-bit words that hold one bit for each rank
  Header& header_;
  std::uint64_t* taken_;      // by rank: entries that it has taken
  std::uint64_t* collected_;  // by rank: arrivals of its lane that have been collected
  std::uint32_t* joined_;     // by rank: 1 if it has joined
  // By rank: 1 if its last arrival was ignored, because the slot had been renewed before.
  std::uint32_t* dropped_;
  Lane* lanes_;  // by rank
  // By slot: increases when the slot gets another name or other arrays.
  std::atomic<std::uint32_t>* generations_;
  std::uint16_t* heads_;  // first slot of each hash chain; index + 1
  Logged* log_;
  Queued* queue_;  // a heap
  Structure* structures_;
  std::byte* slots_;
  std::size_t slot_bytes_;
  const RankNames names_;
  const std::function<void()> look_;
  const bool is_one_of_several_;
  std::unordered_map<std::string, Known, HashOfName, std::equal_to<>> known_;
  bool ready_ = false;     // a name has become ready since ranks were last notified
  bool watches_ = false;   // this rank is a watcher
  bool in_order_ = false;  // see_in_order() is on
  // This rank has submitted nothing since it last took entries. It may wait for its next submission
  // at once, and then arriving in the slot is quicker than publishing in the lane.
  bool is_first_ = true;
  std::uint64_t published_ = 0;       // arrivals that this rank has written to its lane
  std::uint64_t lane_collected_ = 0;  // of these, at least so many have been collected
  // What this rank saw when it last looked:
  std::uint64_t seen_ = 0;                     // value of Header::news
  std::vector<std::uint64_t> seen_collected_;  // arrivals collected, by rank
  bool left_ = false;                          // there was more to take for a rank with capacity
};

}  // namespace gradred
