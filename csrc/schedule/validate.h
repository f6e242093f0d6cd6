// Checks one rank's schedule by itself. A schedule from outside is checked before it is run.
#pragma once

#include <string>

#include "base/errors.h"
#include "schedule/schedule.h"

namespace gradred {

// Where a schedule is wrong, and why. Round and step are -1 if the fault lies in none of them.
struct Problem {
  int rank = -1;
  int round = -1;
  int step = -1;
  std::string reason;
};

// "rank 1, round 0, step 2: reason".
std::string describe(const Problem& problem);

class ScheduleError : public UsageError {
 public:
  explicit ScheduleError(Problem problem)
      : UsageError(describe(problem)), problem_(std::move(problem)) {}
  const Problem& problem() const { return problem_; }

 private:
  Problem problem_;
};

// "chunk 3", "chunks 3..5 in slots 0..2": for messages and pictures.
std::string describe(const Span& span);
std::string describe(const Step& step);

// Throws ScheduleError unless all of these hold. Every span lies inside the vector and the scratch
// buffer. Peers exist. The ends of each local step are the same chunks at different places, though
// a reduction may write to its operand. Nothing writes to the input buffer. No span that is being
// received overlaps with another message of its round. An executor that runs a validated schedule
// stays inside its buffers, whatever the other ranks do.
void validate(const Schedule& schedule);

}  // namespace gradred
