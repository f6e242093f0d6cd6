// Ranks on several hosts: those that share memory are a site, which has a board of its own. What is
// agreed on is then agreed on by the sites, by messages to a coordinator and back.
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
#include "coordinator/submission.h"

namespace gradred {

// What a message says.
enum class Said : std::uint8_t {
  // To the coordinator:
  kReady,   // all ranks of the site have submitted `name`, or have joined
  kJoined,  // all of them have joined
  kLacks,   // `ranks` of the site have not submitted `name`
  // To all sites:
  kAgreed,     // the next entry of the log
  kAllJoined,  // likewise, the end of a join
  kWaits,      // `name` waits for other sites; there for `ranks`, as far as it is known
  // Both ways:
  kLeft,  // a rank has left, and `text` says why
};

struct SiteMessage {
  Said kind = Said::kReady;
  bool more = false;                 // kAgreed: the next entry is of the same batch
  bool some_joined = false;          // kReady: not every rank of the site has an array
  std::optional<Failure> failure{};  // kLeft: the kind of failure that made it leave
  std::uint32_t chunk = 0;           // kAgreed: of submission.chunks()
  std::int32_t rank = -1;            // kReady: the first one; kJoined, kAllJoined: the last one
  std::string name{}, text{};        // the latter: of kReady and kAgreed, what is wrong
  Submission submission{};           // kReady, kAgreed
  std::vector<std::int32_t> ranks{};

  bool has_submission() const { return kind == Said::kReady || kind == Said::kAgreed; }
};

// Messages as bytes in one direction of a connection. A name that has been sent with the same
// submission before travels as a number.
class SiteEncoder {
 public:
  void add(const SiteMessage& message, std::vector<std::byte>& bytes);

 private:
  std::unordered_map<std::string, std::uint32_t> known_;
};

class SiteDecoder {
 public:
  // The messages that are complete; the rest waits for more. Throws TransportError for bytes that
  // no encoder makes.
  void add(std::span<const std::byte> bytes, const std::function<void(SiteMessage)>& take);

 private:
  SiteMessage decode(std::span<const std::byte> bytes);

  struct Known {
    std::string name;
    Submission submission;
  };
  std::vector<Known> known_;
  std::vector<std::byte> pending_;
};

// What the coordinator knows: which sites are ready for what, and in which order it is carried out.
class Sites {
 public:
  Sites(std::size_t sites, std::uint64_t most_fused_bytes, RankNames names)
      : sites_(sites),
        most_fused_bytes_(most_fused_bytes),
        joined_(sites),
        names_(std::move(names)) {}

  void hear(std::size_t site, const SiteMessage& message);
  bool any_agreed() const { return !queue_.empty() || all_joined_ || left_; }
  bool any_waiting() const { return !pending_.empty(); }
  bool is_over() const { return over_; }  // a rank has left: nothing more is agreed on
  // For all sites, in this order: what is most urgent, of the bytes of a chunk or somewhat more.
  // What is taken at once, and suits, is one batch. The end of a join comes when nothing else is
  // left, and so does the word that a rank has left: then all is taken at once.
  std::vector<SiteMessage> take();
  // Of names that some sites have waited for since before `since_ns`: kWaits.
  std::vector<SiteMessage> waiting(std::uint64_t since_ns) const;

 private:
  struct Pending {
    SiteMessage first;
    std::uint64_t since_ns;
    std::vector<bool> arrived;  // by site
    std::size_t arrivals = 0;
    bool some_joined = false;
    std::vector<std::vector<std::int32_t>> lacking;  // by site, as far as it has said
  };

  struct Queued {
    Turn turn;
    SiteMessage entry;

    bool operator<(const Queued& other) const { return turn < other.turn; }
  };

  void arrive(std::size_t site, const SiteMessage& message);
  void join(std::size_t site, int last);
  bool is_complete(const Pending& pending) const;
  void agree(Pending&& pending);
  void left(const SiteMessage& message);
  SiteMessage next();
  void form_batches(std::vector<SiteMessage>& taken) const;

  const std::size_t sites_;
  const std::uint64_t most_fused_bytes_;
  std::unordered_map<std::string, Pending> pending_;
  std::vector<Queued> queue_;  // a heap
  std::uint64_t turns_ = 0;
  std::int32_t highest_ = 0;  // priority so far
  std::vector<bool> joined_;
  std::size_t joins_ = 0;
  int last_joined_ = -1;
  bool all_joined_ = false;
  bool over_ = false;                // a rank has left
  std::optional<SiteMessage> left_;  // that is to be told
  const RankNames names_;
};

}  // namespace gradred
