// Which ranks do the same, so that the simulation of one stands for all of them.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "schedule/algorithms.h"
#include "schedule/schedule.h"
#include "simulate/cluster.h"

namespace gradred {

// Whether the ranks r and r + `period` of a built-in algorithm have the same steps with spans of
// the same length, and their peers are the same modulo `period`. Messages of a round between ranks
// that are the same modulo `period` meet in the order in which they are posted. False where this is
// not known without a comparison of schedules.
bool is_symmetric(Kind collective, std::string_view name, const Parameters& parameters,
                  std::size_t size, std::size_t period);

// Whether each rank does what the rank does that is the same modulo `period`: the same kinds of
// steps, in the same order, with spans of the same length, and with peers that are the same modulo
// `period` and meet it at the same level. Also false if messages could be paired in two ways.
// `schedule_of` returns the schedule of a rank.
bool is_alike(const std::function<Schedule(std::size_t rank)>& schedule_of, std::size_t size,
              std::size_t period, const Network& network);

}  // namespace gradred
