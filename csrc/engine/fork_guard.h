// A child that a rank has forked is not a rank: it must not communicate.
#pragma once

namespace gradred {

void guard_forks();  // once: this process is a rank
bool is_fork_of_rank();
void require_rank();  // throws UsageError in such a child

}  // namespace gradred
