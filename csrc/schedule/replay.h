// The one walker over the rounds of schedules. The proof, the cost and the simulation of schedules
// are visitors of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "schedule/schedule.h"

namespace gradred {

// One end of a message: a send or receive step that a rank has posted.
struct MessageEnd {
  std::size_t rank = 0;  // index of the rank in the replay
  std::size_t round = 0, step = 0;
  Step what{};
  std::uint32_t mark = 0;  // what the visitor's post() returned
};

// The posted ends of one rank whose counterparts are not posted yet, in the order of posting.
class PostedEnds {
 public:
  bool empty() const { return alive_ == 0; }
  // The end that was posted first. Only to be called if there is one.
  const MessageEnd& front() const { return std::ranges::find(ends_, true, &Entry::alive)->end; }
  void add(const MessageEnd& end) {
    ends_.push_back({end, true});
    ++alive_;
  }
  // Removes the first end for which `fits` is true and stores it in `found`. Returns false if there
  // is none.
  template <class Fits>
  bool take(Fits&& fits, MessageEnd& found) {
    for (Entry& entry : ends_) {
      if (!entry.alive || !fits(entry.end)) continue;
      found = entry.end;
      entry.alive = false;
      --alive_;
      compact();
      return true;
    }
    return false;
  }

 private:
  struct Entry {
    MessageEnd end;
    bool alive;
  };

  // Removed entries stay until they are half of all, so that a removal takes constant time on
  // average.
  void compact() {
    if (ends_.size() > 2 * alive_) std::erase_if(ends_, [](const Entry& e) { return !e.alive; });
  }

  std::vector<Entry> ends_;
  std::size_t alive_ = 0;
};

// Walks schedules in one of two orders. in_step() visits the rounds of all ranks by number, and
// looks at no message. enter() lets one rank begin its next round, and pairs the messages of
// different ranks; the visitor decides when a rank has finished a round.
//
// The schedules are those of ranks 0, 1, ... . If there are fewer than ranks, each stands for the
// ranks that are the same modulo their number. With `copies`, each rank runs its schedule so many
// times at once, and messages are paired within a copy; the rank with index `copy * schedules +
// rank` runs one of these.
class Replay {
 public:
  explicit Replay(std::span<const Schedule> schedules, std::size_t copies = 1)
      : count_(schedules.size()), ranks_(schedules.size() * copies) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) ranks_[i].schedule = &schedules[i % count_];
  }

  std::size_t ranks() const { return ranks_.size(); }
  const Schedule& schedule(std::size_t rank) const { return *ranks_[rank].schedule; }
  std::size_t round(std::size_t rank) const { return ranks_[rank].round; }
  bool done(std::size_t rank) const {
    return ranks_[rank].round == ranks_[rank].schedule->rounds.size();
  }
  // The steps of the round that the rank has entered.
  const Round& steps(std::size_t rank) const { return *ranks_[rank].steps; }
  const PostedEnds& posted(std::size_t rank) const { return ranks_[rank].posted; }

  // Calls each(index of the schedule, number of the round, steps) for all schedules that have a
  // round of this number, then end(), for one number after the other.
  template <class Each, class End>
  void in_step(Each&& each, End&& end) {
    for (bool more = true; more;) {
      more = false;
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        if (done(i)) continue;
        load(ranks_[i]);
        each(i, ranks_[i].round, steps(i));
        ++ranks_[i].round;
        more = true;
      }
      if (more) end();
    }
  }
  template <class Each>
  void in_step(Each&& each) {
    in_step(each, [] {});
  }

  // Lets a rank begin its next round and posts its messages. Calls, for each message in the order
  // of the steps, visitor.post(end), and visitor.met(send, recv) if the counterpart is posted
  // already: messages of a pair of ranks meet in order. Calls visitor.unblocked(rank) for each rank
  // of which no posted message waits for its counterpart any more. Does nothing after the last
  // round.
  template <class Visitor>
  void enter(std::size_t rank, Visitor& visitor) {
    if (done(rank)) return;
    load(ranks_[rank]);
    const Round& round = steps(rank);
    for (std::size_t step = 0; step < round.size(); ++step) {
      if (is_message(round[step].kind)) post(rank, step, visitor);
    }
    if (ranks_[rank].posted.empty()) visitor.unblocked(rank);
  }
  void leave(std::size_t rank) { ++ranks_[rank].round; }

 private:
  struct Rank {
    const Schedule* schedule = nullptr;
    std::size_t round = 0;
    Round room{};  // storage of the round, if a function makes it
    const Round* steps = nullptr;
    PostedEnds posted{};
  };

  static void load(Rank& rank) { rank.steps = &rank.schedule->rounds.at(rank.round, rank.room); }

  std::size_t index_of(int peer, std::size_t rank) const {
    return rank - rank % count_ + static_cast<std::size_t>(peer) % count_;
  }

  template <class Visitor>
  void post(std::size_t rank, std::size_t step, Visitor& visitor) {
    MessageEnd mine{rank, ranks_[rank].round, step, steps(rank)[step]};
    mine.mark = visitor.post(mine);
    const std::size_t peer = index_of(mine.what.peer, rank);
    MessageEnd theirs;
    const bool met = ranks_[peer].posted.take(
        [&](const MessageEnd& end) {
          return end.what.kind != mine.what.kind && index_of(end.what.peer, peer) == rank;
        },
        theirs);
    if (!met) return ranks_[rank].posted.add(mine);
    const bool sends = mine.what.kind == StepKind::kSend;
    visitor.met(sends ? mine : theirs, sends ? theirs : mine);
    if (peer != rank && ranks_[peer].posted.empty()) visitor.unblocked(peer);
  }

  std::size_t count_;  // schedules
  std::vector<Rank> ranks_;
};

}  // namespace gradred
