// The mean of integers as the ranks carry it out: as a sum of words (reduce/averages.h).
#pragma once

#include <cstddef>
#include <memory>

#include "calls/call.h"

namespace gradred {

class SumOfWords {
 public:
  // Reads the input of `mean`, whose arrays are in host memory and stay valid as long as this
  // object. Throws std::bad_alloc.
  SumOfWords(const Call& mean, int rank, int size);
  // In place, in memory of this object.
  const Call& call() const { return sum_; }
  // After the sum: writes the result of the mean.
  void write_mean() const;
  // The MPI may go on using the memory: it stays allocated for ever.
  void keep_for_ever() noexcept { static_cast<void>(words_.release()); }

 private:
  const Call mean_;
  const int rank_, size_;
  Call sum_;
  std::unique_ptr<std::byte[]> words_;
};

}  // namespace gradred
