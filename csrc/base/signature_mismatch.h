// The error of a rank that has received a message of another call.
#pragma once

#include <string>

#include "base/errors.h"
#include "base/rank_names.h"
#include "base/signature.h"

namespace gradred {

// The text names the ranks by their numbers in the communicator. Who knows their names makes
// another one, text_for().
class SignatureMismatch : public UsageError {
 public:
  struct Ranks {
    int own = 0, peer = 0;
  };
  SignatureMismatch(Ranks ranks, const Signature& asked, const Signature& other_asked)
      : UsageError(text(RankNames(), ranks, asked, other_asked)),
        ranks_(ranks),
        asked_(asked),
        other_asked_(other_asked) {}
  std::string text_for(const RankNames& names) const {
    return text(names, ranks_, asked_, other_asked_);
  }

 private:
  static std::string text(const RankNames& names, Ranks ranks, const Signature& asked,
                          const Signature& other_asked) {
    return disagreement_text(names.of(ranks.own), asked, names.of(ranks.peer), other_asked);
  }

  Ranks ranks_;
  Signature asked_, other_asked_;
};

}  // namespace gradred
