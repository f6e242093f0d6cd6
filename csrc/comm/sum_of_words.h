// The mean of integers as the ranks carry it out: as a sum of words (reduce/averages.h).
#pragma once

#include <cstddef>
#include <memory>

#include "comm/carried.h"

namespace gradred {

class SumOfWords final : public Carried {
 public:
  // Reads the input of `mean`, whose arrays are in host memory and stay valid as long as this
  // object. Throws std::bad_alloc.
  SumOfWords(const Call& mean, int rank, int size);
  // In place, in memory of this object.
  const Call& call() const override { return sum_; }
  void finish() override;
  void keep_for_ever() noexcept override { static_cast<void>(words_.release()); }

 private:
  const Call mean_;
  const int rank_, size_;
  Call sum_;
  std::unique_ptr<std::byte[]> words_;
};

}  // namespace gradred
