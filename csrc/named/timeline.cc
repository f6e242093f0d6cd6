#include "named/timeline.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "base/clock.h"

namespace gradred {
namespace {

std::string in_capitals(std::string_view text) {
  std::string made(text);
  std::ranges::transform(made, made.begin(),
                         [](unsigned char one) { return static_cast<char>(std::toupper(one)); });
  return made;
}

std::string axes_of(const Submission& what) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < std::min<std::size_t>(what.axes, Submission::kMostAxes);
       ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(what.shape[axis]);
  }
  return text + (what.axes > Submission::kMostAxes ? ", ...]" : "]");
}

std::int64_t since_epoch_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

Timeline::Timeline(int file, bool mark_cycles)
    : file_(file), marks_cycles_(mark_cycles), begin_ns_(now_ns()) {
  Json args = Json::object();
  args.put("start_time_since_epoch_in_micros", since_epoch_us());
  std::string text = event('M', 0, begin_ns_, {{"name", "process_name"}, {"args", args}});
  write(text);
}

Timeline::~Timeline() { ::close(file_); }

std::string Timeline::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

std::string Timeline::event(char phase, int tensor, std::uint64_t at_ns, Fields fields) const {
  Json made = Json::object();
  made.put("ph", std::string(1, phase));
  made.put("pid", tensor);
  // Fractions of a microsecond, as the format allows: some operations are shorter than one.
  const std::uint64_t since_ns = at_ns < begin_ns_ ? 0 : at_ns - begin_ns_;
  made.put("ts", static_cast<double>(since_ns) / 1e3);
  for (const auto& [name, value] : fields) made.put(name, value);
  return made.text() + ",\n";
}

// Returns the number that the events of this name use as process id; introduces it if it is new.
int Timeline::tensor(std::string_view name, std::string& text) {
  if (const auto known = tensors_.find(name); known != tensors_.end()) return known->second;
  const int number = static_cast<int>(tensors_.size()) + 1;
  tensors_.emplace(name, number);
  Json named = Json::object();
  named.put("name", name);
  Json sorted = Json::object();
  sorted.put("sort_index", number);
  text += event('M', number, begin_ns_, {{"name", "process_name"}, {"args", named}});
  text += event('M', number, begin_ns_, {{"name", "process_sort_index"}, {"args", sorted}});
  return number;
}

// Writes `text`, which holds whole events, each followed by a comma and a new line.
void Timeline::write(std::string& text) {
  if (!problem_.empty()) return;
  if (length_ == 0) text.insert(0, "[\n");
  text.replace(text.size() - 2, 2, "\n]\n");
  if (length_ != 0) text.insert(0, ",\n");
  const char* rest = text.data();
  std::size_t left = text.size();
  std::uint64_t at = length_;
  while (left > 0) {
    const ssize_t written = ::pwrite(file_, rest, left, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      problem_ = std::generic_category().message(errno);
      return;
    }
    rest += written;
    left -= static_cast<std::size_t>(written);
    at += static_cast<std::uint64_t>(written);
  }
  length_ = at - 3;  // the next event overwrites the closing bracket
}

void Timeline::submitted(std::string_view name, NamedKind kind, int rank, std::uint64_t at_ns) {
  const std::lock_guard lock(mutex_);
  std::string text;
  const int number = tensor(name, text);
  text += event('B', number, at_ns, {{"name", "NEGOTIATE_" + in_capitals(name_of(kind))}});
  text += event('X', number, at_ns, {{"name", std::to_string(rank)}, {"dur", 0}});
  write(text);
}

void Timeline::ended(std::string_view name, const Submission& what, const NamedTimes& times,
                     std::string_view problem) {
  const std::uint64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  std::string text;
  const int number = tensor(name, text);
  const std::uint64_t agreed = times.agreed_ns == 0 ? now : times.agreed_ns;
  if (times.last_rank >= 0) {
    Json args = Json::object();
    args.put("last_to_submit", times.last_rank);
    text += event('X', number, agreed,
                  {{"name", std::to_string(times.last_rank)}, {"dur", 0}, {"args", args}});
  }
  text += event('E', number, agreed);
  const bool moves = what.kind != NamedKind::kBarrier && what.kind != NamedKind::kRefusal &&
                     what.kind != NamedKind::kJoin;
  if (moves || !problem.empty()) {
    const std::string kind = in_capitals(name_of(what.kind));
    text += event('B', number, agreed, {{"name", problem.empty() ? kind : "ERROR"}});
    if (times.agreed_ns != 0 && times.started_ns != 0) {
      text += event('B', number, agreed, {{"name", "QUEUE"}});
      text += event('E', number, times.started_ns);
      text += event('B', number, times.started_ns, {{"name", "GRADRED_" + kind}});
      text += event('E', number, now);
    }
    Json args = Json::object();
    args.put("dtype", name_of(what.dtype));
    args.put("shape", axes_of(what));
    args.put("bytes", what.bytes);
    if (what.arrays != 1) args.put("tensors", what.arrays);
    if (times.batch != 0) args.put("operations_in_batch", times.batch);
    if (!problem.empty()) args.put("error", problem);
    text += event('E', number, now, {{"args", args}});
  }
  write(text);
}

void Timeline::batch_began(std::uint64_t at_ns) {
  if (!marks_cycles_) return;
  const std::lock_guard lock(mutex_);
  std::string text = event('i', 0, at_ns, {{"name", "CYCLE_START"}, {"s", "g"}});
  write(text);
}

}  // namespace gradred
