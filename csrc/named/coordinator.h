// Ranks on several hosts. The ranks that share memory form a host group,
// which has its own board. The groups agree by messages to a coordinator and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/failure.h"
#include "base/rank_names.h"
#include "named/submission.h"

namespace gradred {

// Kinds of messages.
enum class Said : std::uint8_t {
  // From a host group to the coordinator:
  kReady,   // all ranks of the group have submitted `name`, or have joined
  kJoined,  // all ranks of the group have joined
  kLacks,   // `ranks` of the group have not submitted `name`
  // From the coordinator to all host groups:
  kAgreed,     // the next entry of the log
  kAllJoined,  // the entry that ends a join
  kWaits,      // other groups wait for `name`; `ranks` lack it, as far as the coordinator knows
  // In both directions:
  kLeft,  // a rank has left, and `text` says why
};

struct HostGroupMessage {
  Said kind = Said::kReady;
  bool more = false;         // kAgreed: the next entry belongs to the same batch
  bool some_joined = false;  // kReady: some ranks of the group have joined and have no array
  std::optional<Failure> failure{};  // kLeft: the failure because of which the rank left
  std::uint32_t chunk = 0;           // kAgreed: index among submission.chunks()
  // kReady: the first rank to arrive; kJoined, kAllJoined: the last to join.
  std::int32_t rank = -1;
  // `text`: for kReady and kAgreed, the error; for kLeft, the reason.
  std::string name{}, text{};
  std::string structure{};  // kReady: as Submitted::structure
  Submission submission{};  // kReady, kAgreed
  std::vector<std::int32_t> ranks{};

  bool has_submission() const { return kind == Said::kReady || kind == Said::kAgreed; }
};

// Encodes messages for one direction of a connection. A name that was sent before with the same
// submission is sent as a number.
class HostGroupEncoder {
 public:
  void add(const HostGroupMessage& message, std::vector<std::byte>& bytes);

 private:
  std::unordered_map<std::string, std::uint32_t> known_;
};

class HostGroupDecoder {
 public:
  // Calls `take` for each message that is complete, and stores the rest. Throws TransportError for
  // bytes that no encoder produces.
  void add(std::span<const std::byte> bytes, const std::function<void(HostGroupMessage)>& take);

 private:
  HostGroupMessage decode(std::span<const std::byte> bytes);

  struct Known {
    std::string name, structure;
    Submission submission;
  };
  std::vector<Known> known_;
  std::vector<std::byte> pending_;
};

// The coordinator's state: which host groups are ready for which names, and the order of the log.
class Coordinator {
 public:
  Coordinator(std::size_t host_groups, std::uint64_t most_fused_bytes, RankNames names)
      : host_groups_(host_groups),
        most_fused_bytes_(most_fused_bytes),
        joined_(host_groups),
        names_(std::move(names)) {}

  void receive(std::size_t host_group, const HostGroupMessage& message);
  bool any_agreed() const { return !queue_.empty() || all_joined_ || left_; }
  bool any_waiting() const { return !pending_.empty(); }
  bool is_over() const { return over_; }  // a rank has left: nothing more is agreed on
  // Takes the most urgent entries, which go to all host groups in this order; at least one chunk's
  // bytes if there are so many. Entries that are taken together and have the same BatchKey form one
  // batch. The end of a join is taken when no other entry is left. Once a rank has left, one call
  // takes all entries, and the message about it as the last.
  std::vector<HostGroupMessage> take();
  // Returns kWaits for each name for which some groups have waited since before `since_ns`.
  std::vector<HostGroupMessage> waiting(std::uint64_t since_ns) const;

 private:
  struct Pending {
    HostGroupMessage first;
    std::uint64_t since_ns;
    std::vector<bool> arrived;  // by host group
    std::size_t arrivals = 0;
    bool some_joined = false;
    std::vector<std::vector<std::int32_t>> lacking;  // by host group, as far as reported
  };

  struct Queued {
    Turn turn;
    HostGroupMessage entry;

    bool operator<(const Queued& other) const { return turn < other.turn; }
  };

  void arrive(std::size_t host_group, const HostGroupMessage& message);
  void join(std::size_t host_group, int last);
  bool is_complete(const Pending& pending) const;
  void agree(Pending&& pending);
  void left(const HostGroupMessage& message);
  HostGroupMessage next();
  void form_batches(std::vector<HostGroupMessage>& taken) const;

  const std::size_t host_groups_;
  const std::uint64_t most_fused_bytes_;
  std::unordered_map<std::string, Pending> pending_;
  std::vector<Queued> queue_;  // a heap
  std::uint64_t turns_ = 0;
  std::int32_t highest_ = 0;  // highest priority so far
  std::vector<bool> joined_;
  std::size_t joins_ = 0;
  int last_joined_ = -1;
  bool all_joined_ = false;
  bool over_ = false;                     // a rank has left
  std::optional<HostGroupMessage> left_;  // the message about it, until it is taken
  const RankNames names_;
};

}  // namespace gradred
