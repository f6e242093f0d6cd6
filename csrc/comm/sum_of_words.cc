#include "comm/sum_of_words.h"

#include <algorithm>

#include "reduce/averages.h"

namespace gradred {

SumOfWords::SumOfWords(const Call& mean, int rank, int size)
    : mean_(mean), rank_(rank), size_(size), sum_(mean) {
  const Words words = words_of(mean.dtype);
  const PlaceInCall at{rank, size, mean.root};
  const std::size_t given = mean.count * given_counts(mean.kind, at);
  const std::size_t got = mean.count * got_counts(mean.kind, at);
  const std::size_t bytes = std::max(given, got) * words.each * size_of(words.dtype);
  words_ = std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(bytes, 1));
  to_words(words_.get(), mean.input(), given, mean.dtype);
  sum_.in = {};
  sum_.out = {words_.get()};
  sum_.order = nullptr;
  sum_.count *= words.each;
  sum_.dtype = words.dtype;
  sum_.op = Op::kSum;
  sum_.mean_of = mean.dtype;
}

void SumOfWords::finish() {
  const PlaceInCall at{rank_, size_, mean_.root};
  const std::size_t got = mean_.count * got_counts(mean_.kind, at);
  const int inputs = reduced_ranks(mean_.kind, rank_, size_).count();
  if (inputs > 0) from_words(mean_.out.data, words_.get(), got, mean_.dtype, inputs);
}

}  // namespace gradred
