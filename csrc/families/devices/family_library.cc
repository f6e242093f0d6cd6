#include "families/devices/family_library.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "base/errors.h"
#include "engine/waiting.h"
#include "families/devices/library_operation.h"

namespace gradred {
namespace {

// Where the ranks may be, and which kinds of calls the family carries out.
enum class Reach : std::uint8_t { kHosts, kOneHost };
using Kinds = std::span<const Kind>;
constexpr std::array kAllreduceAlone = {Kind::kAllreduce};
constexpr std::array kKindsOfNccl = {Kind::kAllreduce, Kind::kReduceScatterBlock, Kind::kAllgather,
                                     Kind::kBcast};

class LibraryFamily final : public Family {
 public:
  LibraryFamily(std::string_view name, std::string_view about, Reach reach, Kinds serves)
      : name_(name), about_(about), reach_(reach), serves_(serves) {}

  std::string_view name() const override { return name_; }
  std::string_view about() const override { return about_; }
  std::string_view medium() const override { return "library"; }
  const char* traced_as() const override { return name_.data(); }
  UsedTransport used_transport() const override { return UsedTransport::kLibrary; }
  // Without shared memory the ranks agree on the call by messages.
  bool sends(const Place& place) const override { return !place.why_no_memory.empty(); }
  std::vector<std::string> plans(Kind collective) const override {
    if (!serves(collective)) return {};
    return {std::string(name_)};
  }

  std::optional<std::string> why_not(const Question& question, const Place& place) const override {
    if (question.own != nullptr) return "it knows no schedule of the caller's";
    if (question.plan.empty()) return "it is taken where it is named";
    if (!serves(question.collective)) return "it has no such call";
    if (reach_ == Reach::kOneHost && !place.why_no_memory.empty()) {
      return "not all ranks share memory: " + place.why_no_memory;
    }
    const bool meets = place.why_no_memory.empty() || place.why_no_messages.empty();
    if (!meets) return "the ranks have no way to agree on the call: " + place.why_no_messages;
    return std::nullopt;
  }

  std::vector<Plan> offers(const Question&, const Place&) const override {
    Plan plan{.source = this, .name = std::string(name_), .reason = "as asked"};
    plan.seconds = std::numeric_limits<double>::infinity();
    return {plan};
  }

  // check() refuses what it cannot serve.
  ArrayAccess access(const Call&) const override { return ArrayAccess::kStreamOrder; }
  void check(const Parts& parts, const Call& call) const override {
    const std::string why = parts.libraries.ranks(name_).why_not(call);
    if (why.empty()) return;
    throw UsageError("plan '" + std::string(name_) + "' cannot serve this call: " + why);
  }
  void run(const Parts& parts, const Plan& plan, const Call& call, WaitHook& hook) const override {
    wait_for(*library_operation(parts, call, plan), hook);
  }
  std::shared_ptr<StartedOperation> operation(const Parts& parts, const Plan& plan,
                                              const Call& call) const override {
    return library_operation(parts, call, plan);
  }

 private:
  bool serves(Kind kind) const { return std::ranges::find(serves_, kind) != serves_.end(); }

  const std::string_view name_, about_;
  const Reach reach_;
  const Kinds serves_;
};

}  // namespace

Families library_families() {
  static const std::array<LibraryFamily, 3> families = {{
      {"nccl", "NCCL's own call, on arrays in the memory of GPUs of which each rank has one",
       Reach::kHosts, kKindsOfNccl},
      {"one_shot", "a kernel on each rank's own GPU, which reads the inputs of all ranks",
       Reach::kOneHost, kAllreduceAlone},
      {"two_shot", "a kernel on each rank's own GPU, which reduces a slice and reads the others",
       Reach::kOneHost, kAllreduceAlone},
  }};
  static const auto all = [] {
    std::array<const Family*, families.size()> made{};
    std::ranges::transform(families, made.begin(), [](const auto& family) { return &family; });
    return made;
  }();
  return all;
}

}  // namespace gradred
