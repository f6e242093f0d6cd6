// The rounds of a schedule, one at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "schedule/step.h"

namespace gradred {

// A list, or a function that makes the round of each number: a ring among 4,096 ranks has 8,190
// rounds, which nobody needs to hold. A function is pure. Copies share what they hold.
class Rounds {
 public:
  using Function = std::function<Round(int number)>;

  Rounds() = default;
  Rounds(std::vector<Round> list);
  Rounds(int count, Function function);

  std::size_t size() const { return count_; }
  Round operator[](std::size_t number) const;
  // The same without a copy: a reference into the list, or to `room`, where the round is made.
  const Round& at(std::size_t number, Round& room) const;
  // As a list, if that takes no more than `bytes`; else as they are.
  Rounds held_within(std::size_t bytes) const;
  std::size_t bytes_held() const;

  class Iterator {
   public:
    Iterator(const Rounds& rounds, std::size_t number) : rounds_(&rounds), number_(number) {}
    Round operator*() const { return (*rounds_)[number_]; }
    Iterator& operator++() {
      ++number_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const Rounds* rounds_;
    std::size_t number_;
  };
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, count_}; }
  bool operator==(const Rounds& other) const;

 private:
  std::size_t count_ = 0;
  std::shared_ptr<const Function> function_;
  std::shared_ptr<const std::vector<Round>> list_;
};

// One after the other.
Rounds joined(Rounds first, Rounds second);
// `change` applied to each step.
Rounds changed(Rounds rounds, std::function<void(Step&)> change);

}  // namespace gradred
