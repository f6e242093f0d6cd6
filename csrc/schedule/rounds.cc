#include "schedule/rounds.h"

#include <utility>

namespace gradred {
namespace {

std::size_t bytes_of(const Round& round) { return sizeof(Round) + round.size() * sizeof(Step); }

}  // namespace

Rounds::Rounds(std::vector<Round> list)
    : count_(list.size()), list_(std::make_shared<const std::vector<Round>>(std::move(list))) {}

Rounds::Rounds(int count, Function function)
    : count_(static_cast<std::size_t>(count)),
      function_(std::make_shared<const Function>(std::move(function))) {}

Round Rounds::operator[](std::size_t number) const {
  return list_ ? (*list_)[number] : (*function_)(static_cast<int>(number));
}

const Round& Rounds::at(std::size_t number, Round& room) const {
  if (list_) return (*list_)[number];
  return room = (*function_)(static_cast<int>(number));
}

Rounds Rounds::held_within(std::size_t bytes) const {
  if (list_) return *this;
  std::vector<Round> list;
  std::size_t sum = 0;
  for (Round round : *this) {
    sum += bytes_of(round);
    if (sum > bytes) return *this;
    list.push_back(std::move(round));
  }
  return list;
}

std::size_t Rounds::bytes_held() const {
  std::size_t sum = 0;
  if (list_) {
    for (const Round& round : *list_) sum += bytes_of(round);
  }
  return sum;
}

bool Rounds::operator==(const Rounds& other) const {
  if (count_ != other.count_) return false;
  Round mine, theirs;
  for (std::size_t number = 0; number < count_; ++number) {
    if (at(number, mine) != other.at(number, theirs)) return false;
  }
  return true;
}

Rounds joined(Rounds first, Rounds second) {
  const auto begin = first.size();
  return {static_cast<int>(begin + second.size()), [=](int number) {
            const auto at = static_cast<std::size_t>(number);
            return at < begin ? first[at] : second[at - begin];
          }};
}

Rounds changed(Rounds rounds, std::function<void(Step&)> change) {
  return {static_cast<int>(rounds.size()), [=](int number) {
            Round round = rounds[static_cast<std::size_t>(number)];
            for (Step& step : round) change(step);
            return round;
          }};
}

}  // namespace gradred
