// The rounds of a schedule, accessed one at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "schedule/step.h"

namespace gradred {

// Either a list of rounds, or a pure function that makes the round of a given number. A ring among
// 4,096 ranks has 8,190 rounds, which need not all be in memory. Copies share their contents.
class Rounds {
 public:
  using Function = std::function<Round(int number)>;

  Rounds() = default;
  Rounds(std::vector<Round> list);
  Rounds(int count, Function function);

  std::size_t size() const { return count_; }
  Round operator[](std::size_t number) const;
  // The same without a copy: returns a reference into the list, or to `room`, in which the round is
  // made.
  const Round& at(std::size_t number, Round& room) const;
  // Returns the rounds as a list if that takes at most `bytes`; else returns them unchanged.
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

// The rounds of `first`, then those of `second`.
Rounds joined(Rounds first, Rounds second);
// The rounds with `change` applied to each step.
Rounds changed(Rounds rounds, std::function<void(Step&)> change);

}  // namespace gradred
