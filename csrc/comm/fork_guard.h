// A child that a rank has forked is no rank: nothing may communicate in it.
#pragma once

namespace gradred {

void guard_forks();  // this process is a rank; once
bool is_fork_of_rank();
void require_rank();  // throws UsageError in such a child

}  // namespace gradred
