#include "named/coordinator.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/types.h"

namespace gradred {
namespace {

static_assert(std::is_trivially_copyable_v<Submission>);

constexpr std::uint32_t kMostKnown = 8192;  // names that are sent as numbers
// The name and submission follow, and get the next number.
constexpr std::uint32_t kNotKnown = ~0U;
constexpr std::uint32_t kMostBytes = 1 << 20;  // of a message, at most

struct Head {
  std::uint32_t bytes = 0;  // of the whole message, with this head
  Said kind{};
  std::uint8_t more = 0, some_joined = 0;
  std::uint8_t failure = 0;  // 0: none; else the kind of failure + 1
  std::int32_t rank = 0;
  std::uint32_t chunk = 0;
  std::uint32_t known = 0;  // the number of the name and submission
  std::uint32_t name_bytes = 0, structure_bytes = 0, text_bytes = 0, ranks = 0;
};

void put(std::vector<std::byte>& bytes, const void* from, std::size_t count) {
  const auto* const begin = static_cast<const std::byte*>(from);
  bytes.insert(bytes.end(), begin, begin + count);
}

// Reads what put() has written.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  void read(void* to, std::size_t count) {
    if (count > left_.size()) throw TransportError("named operations: a message is too short");
    if (count != 0) std::memcpy(to, left_.data(), count);
    left_ = left_.subspan(count);
  }
  std::string text(std::size_t count) {
    std::string made(std::min(count, left_.size()), '\0');
    read(made.data(), count);
    return made;
  }

 private:
  std::span<const std::byte> left_;
};

// Whether the values that are used as indices of tables are in range.
bool is_known(const Submission& one) {
  return one.kind <= NamedKind::kJoin && static_cast<std::size_t>(one.dtype) < kDTypes &&
         one.parts <= Submission::kMostParts && one.form <= NamedForm::kAlone;
}

std::string key_of(const std::string& name, const Submission& submission) {
  std::string key(sizeof submission, '\0');
  std::memcpy(key.data(), &submission, sizeof submission);
  return key + name;
}

Submitted submitted(const HostGroupMessage& message, const RankNames& names) {
  return {message.submission, names.of(message.rank), message.structure};
}

}  // namespace

// ---- messages as bytes --------------------------------------------------------------------------

void HostGroupEncoder::add(const HostGroupMessage& message, std::vector<std::byte>& bytes) {
  Head head{.kind = message.kind,
            .more = message.more,
            .some_joined = message.some_joined,
            .failure = static_cast<std::uint8_t>(
                message.failure ? static_cast<unsigned>(*message.failure) + 1 : 0),
            .rank = message.rank,
            .chunk = message.chunk,
            .text_bytes = static_cast<std::uint32_t>(message.text.size()),
            .ranks = static_cast<std::uint32_t>(message.ranks.size())};
  bool names = true;
  if (message.has_submission()) {
    if (known_.size() == kMostKnown) known_.clear();
    const auto number = static_cast<std::uint32_t>(known_.size());
    const auto [found, is_new] =
        known_.try_emplace(key_of(message.name, message.submission), number);
    head.known = is_new ? kNotKnown : found->second;
    names = is_new;
  }
  if (names) {
    head.name_bytes = static_cast<std::uint32_t>(message.name.size());
    head.structure_bytes = static_cast<std::uint32_t>(message.structure.size());
  }
  const std::size_t begin = bytes.size();
  put(bytes, &head, sizeof head);
  if (names) put(bytes, message.name.data(), message.name.size());
  if (names) put(bytes, message.structure.data(), message.structure.size());
  if (names && message.has_submission()) {
    put(bytes, &message.submission, sizeof message.submission);
  }
  put(bytes, message.text.data(), message.text.size());
  put(bytes, message.ranks.data(), message.ranks.size() * sizeof(std::int32_t));
  head.bytes = static_cast<std::uint32_t>(bytes.size() - begin);
  std::memcpy(bytes.data() + begin, &head, sizeof head);
}

void HostGroupDecoder::add(std::span<const std::byte> bytes,
                           const std::function<void(HostGroupMessage)>& take) {
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  std::size_t done = 0;
  while (pending_.size() - done >= sizeof(Head)) {
    Head head;
    std::memcpy(&head, pending_.data() + done, sizeof head);
    if (head.bytes < sizeof head || head.bytes > kMostBytes) {
      throw TransportError("named operations: a message of " + std::to_string(head.bytes) +
                           " bytes");
    }
    if (pending_.size() - done < head.bytes) break;
    HostGroupMessage message = decode(std::span(pending_).subspan(done, head.bytes));
    done += head.bytes;
    take(std::move(message));
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(done));
}

HostGroupMessage HostGroupDecoder::decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Head head;
  reader.read(&head, sizeof head);
  if (head.kind > Said::kLeft || head.failure > 3 || head.ranks > kMostBytes / sizeof(int)) {
    throw TransportError("named operations: a message of no kind");
  }
  HostGroupMessage message{.kind = head.kind,
                           .more = head.more != 0,
                           .some_joined = head.some_joined != 0,
                           .chunk = head.chunk,
                           .rank = head.rank};
  if (head.failure != 0) message.failure = static_cast<Failure>(head.failure - 1);
  if (message.has_submission() && head.known != kNotKnown) {
    if (head.known >= known_.size()) {
      throw TransportError("named operations: a name that was not sent");
    }
    message.name = known_[head.known].name;
    message.structure = known_[head.known].structure;
    message.submission = known_[head.known].submission;
  } else {
    message.name = reader.text(head.name_bytes);
    message.structure = reader.text(head.structure_bytes);
    if (message.has_submission()) {
      reader.read(&message.submission, sizeof message.submission);
      if (!is_known(message.submission)) {
        throw TransportError("named operations: a submission of no kind");
      }
      if (known_.size() == kMostKnown) known_.clear();
      known_.push_back({message.name, message.structure, message.submission});
    }
  }
  if (message.chunk != 0 && message.chunk >= message.submission.chunks()) {
    throw TransportError("named operations: a chunk that the operation does not have");
  }
  message.text = reader.text(head.text_bytes);
  message.ranks.resize(head.ranks);
  reader.read(message.ranks.data(), head.ranks * sizeof(std::int32_t));
  return message;
}

// ---- the coordinator ----------------------------------------------------------------------------

void Coordinator::receive(std::size_t host_group, const HostGroupMessage& message) {
  if (over_) return;
  switch (message.kind) {
    case Said::kReady:
      return arrive(host_group, message);
    case Said::kJoined:
      return join(host_group, message.rank);
    case Said::kLacks:
      if (const auto found = pending_.find(message.name); found != pending_.end()) {
        found->second.lacking[host_group] = message.ranks;
      }
      return;
    case Said::kLeft:
      return left(message);
    case Said::kAgreed:
    case Said::kAllJoined:
    case Said::kWaits:
      break;
  }
  throw TransportError("named operations: a host group has sent what only the coordinator sends");
}

void Coordinator::arrive(std::size_t host_group, const HostGroupMessage& message) {
  const auto [found, is_first] = pending_.try_emplace(message.name);
  Pending& pending = found->second;
  if (is_first) {
    pending.first = message;
    pending.since_ns = now_ns();
    pending.arrived.resize(host_groups_);
    pending.lacking.resize(host_groups_);
  } else if (pending.first.text.empty()) {
    pending.first.text =
        !message.text.empty()
            ? message.text
            : difference(names_, submitted(pending.first, names_), submitted(message, names_));
  }
  std::int32_t& priority = pending.first.submission.priority;
  priority = std::max(priority, message.submission.priority);
  highest_ = std::max(highest_, priority);
  NamedForm& form = pending.first.submission.form;
  form = std::max(form, message.submission.form);
  pending.some_joined |= message.some_joined;
  pending.arrived[host_group] = true;
  ++pending.arrivals;
  if (!is_complete(pending)) return;
  agree(std::move(pending));
  pending_.erase(found);
}

// A host group that has joined has no arrays and sends no kReady.
bool Coordinator::is_complete(const Pending& pending) const {
  for (std::size_t host_group = 0; host_group < host_groups_; ++host_group) {
    if (!pending.arrived[host_group] && !joined_[host_group]) return false;
  }
  return true;
}

void Coordinator::agree(Pending&& pending) {
  HostGroupMessage entry = std::move(pending.first);
  entry.kind = Said::kAgreed;
  entry.structure.clear();
  if ((pending.some_joined || pending.arrivals != host_groups_) && entry.text.empty()) {
    entry.text = why_not_joined(entry.submission);
  }
  NamedForm& form = entry.submission.form;
  if (form == NamedForm::kPlain && entry.submission.priority < highest_) {
    form = NamedForm::kInChunks;
  }
  const Turn turn{entry.submission.priority, turns_++};
  queue_.push_back({turn, std::move(entry)});
  std::push_heap(queue_.begin(), queue_.end());
}

void Coordinator::join(std::size_t host_group, int last) {
  if (joined_[host_group]) return;
  joined_[host_group] = true;
  ++joins_;
  last_joined_ = last;
  for (auto next = pending_.begin(); next != pending_.end();) {
    const bool complete = is_complete(next->second);
    if (complete) agree(std::move(next->second));
    next = complete ? pending_.erase(next) : std::next(next);
  }
  if (joins_ != host_groups_) return;
  all_joined_ = true;
  joined_.assign(host_groups_, false);
  joins_ = 0;
}

void Coordinator::left(const HostGroupMessage& message) {
  over_ = true;
  pending_.clear();
  left_ = message;
}

std::vector<HostGroupMessage> Coordinator::take() {
  std::vector<HostGroupMessage> taken;
  std::uint64_t bytes = 0;
  while (!queue_.empty() && (over_ || bytes < Submission::kChunkBytes)) {
    taken.push_back(next());
    bytes += taken.back().submission.bytes_of(taken.back().chunk);
  }
  form_batches(taken);
  if (!queue_.empty()) return taken;
  if (std::exchange(all_joined_, false)) {
    taken.push_back({.kind = Said::kAllJoined, .rank = last_joined_});
  }
  if (left_) taken.push_back(*std::exchange(left_, std::nullopt));
  return taken;
}

// Takes the most urgent entry, or its next chunk.
HostGroupMessage Coordinator::next() {
  HostGroupMessage& first = queue_.front().entry;
  if (first.text.empty() && first.chunk + 1 < first.submission.chunks()) {
    HostGroupMessage chunk = first;
    ++first.chunk;
    return chunk;
  }
  std::pop_heap(queue_.begin(), queue_.end());
  HostGroupMessage last = std::move(queue_.back().entry);
  queue_.pop_back();
  return last;
}

void Coordinator::form_batches(std::vector<HostGroupMessage>& taken) const {
  Batching batching(most_fused_bytes_);
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (batching.add(taken[i].submission, taken[i].text.empty())) taken[i - 1].more = true;
  }
}

std::vector<HostGroupMessage> Coordinator::waiting(std::uint64_t since_ns) const {
  constexpr std::size_t kMost = 64;
  std::vector<HostGroupMessage> found;
  for (const auto& [name, pending] : pending_) {
    if (pending.since_ns > since_ns || found.size() == kMost) continue;
    HostGroupMessage message{.kind = Said::kWaits, .name = name};
    for (std::size_t host_group = 0; host_group < host_groups_; ++host_group) {
      if (pending.arrived[host_group]) continue;
      const auto& lacking = pending.lacking[host_group];
      message.ranks.insert(message.ranks.end(), lacking.begin(), lacking.end());
    }
    found.push_back(std::move(message));
  }
  return found;
}

}  // namespace gradred
