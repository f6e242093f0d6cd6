#include "plan/selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/signature.h"

namespace gradred {
namespace {

// How many times as long a plan must take for one with a compressed wire to be chosen instead.
constexpr double kLoss = 1.25;

bool has(const PlanSource& source, Kind collective, std::string_view name) {
  const std::vector<std::string> names = source.plans(collective);
  return std::ranges::find(names, name) != names.end();
}

std::string names_of(PlanSources sources, Kind collective) {
  std::string names;
  for (const PlanSource* source : sources) {
    for (const std::string& name : source->plans(collective)) {
      names += (names.empty() ? "" : ", ") + name;
    }
  }
  return names;
}

std::string cost_text(const Plan& plan) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g us", 1e6 * plan.seconds);
  return text.data();
}

// The first plan. Its reason says by how much it is cheaper, if others were considered.
Plan cheapest(const std::vector<Plan>& plans) {
  Plan best = plans.front();
  const auto other = std::ranges::find_if(plans, [&](const Plan& plan) {
    return plan.name != best.name && std::isfinite(plan.seconds);
  });
  if (other != plans.end() && best.seconds > 0) {
    best.reason +=
        ": " + cost_text(best) + "; " + other->name + " comes next with " + cost_text(*other);
  }
  best.known_hash = best.hash();
  return best;
}

}  // namespace

std::uint64_t Plan::hash() const {
  if (known_hash != 0) return known_hash;
  std::uint64_t hash = mix(mix(1, std::string_view(name)), slices);
  for (const int number : {parameters.root, parameters.k, parameters.local, parameters.leaders}) {
    hash = mix(hash, static_cast<std::uint64_t>(number));
  }
  for (const int group : parameters.groups) hash = mix(hash, static_cast<std::uint64_t>(group));
  for (const std::string& algorithm : {parameters.inside, parameters.across}) {
    hash = mix(mix(hash, algorithm.size()), std::string_view(algorithm));
  }
  if (parameters.wire != Wire::kNone) hash = mix(hash, name_of(parameters.wire));
  return hash | 1;
}

const PlanSource* source_of(PlanSources sources, Kind collective, std::string_view name) {
  const auto found = std::ranges::find_if(
      sources, [&](const PlanSource* source) { return has(*source, collective, name); });
  return found == sources.end() ? nullptr : *found;
}

std::vector<Plan> weigh(PlanSources sources, const Question& question, const Place& place) {
  const bool named = !question.plan.empty();
  std::vector<Plan> found;
  std::optional<std::string> objection;
  for (const PlanSource* source : sources) {
    if (named && !has(*source, question.collective, question.plan)) continue;
    if (auto why = source->why_not(question, place)) {
      if (!objection) objection = std::move(why);
      continue;
    }
    std::ranges::move(source->offers(question, place), std::back_inserter(found));
    if (std::ranges::any_of(found, &Plan::for_every_call)) break;
  }
  const bool compressed = question.wire != Wire::kNone && question.wire != Wire::kAuto;
  const bool asked = named || question.own != nullptr || compressed;
  if (question.one_order && !asked && reduces(question.collective)) {
    std::erase_if(found, [](const Plan& plan) { return !plan.one_order; });
  }
  if (compressed) {
    std::erase_if(found, [](const Plan& plan) { return plan.parameters.wire == Wire::kNone; });
    if (found.empty() && !objection) objection = "it has no compressed wire between hosts";
  }
  std::ranges::stable_sort(found, {}, [](const Plan& plan) {
    return plan.parameters.wire == Wire::kNone ? plan.seconds : plan.seconds * kLoss;
  });
  if (!found.empty()) return found;
  if (objection && named) {
    throw UsageError("plan '" + std::string(question.plan) +
                     "' cannot serve this call: " + *objection);
  }
  if (objection) throw UsageError(*objection);
  throw UsageError("no plan for " + std::string(schedules_name(question.collective)) +
                   " is called '" + std::string(question.plan) +
                   "'. There are: " + names_of(sources, question.collective));
}

Plan choose(PlanSources sources, const Question& question, const Place& place) {
  return cheapest(weigh(sources, question, place));
}

}  // namespace gradred
