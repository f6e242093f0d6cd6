#include "base/signature.h"

#include <string_view>
#include <vector>

namespace gradred {
namespace {

constexpr std::string_view kDisagree = "the ranks disagree about a collective call";

// Names what may differ between two calls of equal kind, operation, type and count.
std::string what_may_differ(const Signature& asked, const Signature& other) {
  const SignatureFields fields(asked);
  const auto kind = static_cast<Kind>(fields.kind);
  const auto op = static_cast<Op>(fields.op);
  const auto dtype = static_cast<DType>(fields.dtype);
  if (kind == Kind::kLeftToMpi) return "count, type, operation or shape";
  // For plain buffers `detail` is the root itself, since nothing else is compared.
  constexpr std::uint64_t kMostRanks = 1 << 24;
  if (has_root(kind) && asked.detail < kMostRanks && other.detail < kMostRanks) {
    return "root: " + std::to_string(asked.detail) + " and " + std::to_string(other.detail);
  }
  std::vector<std::string_view> causes;
  if (has_root(kind)) causes.push_back("root");
  if (reduces(kind) && op == Op::kPremul) causes.push_back("factor");
  if (reduces(kind) && op == kAnyUserOp) causes.push_back("function");
  // Elements of types that gradred does not know are moved as bytes.
  if (!reduces(kind) && dtype == DType::kUInt8) causes.push_back("type");
  causes.push_back("shape");
  if (can_be_cut(kind)) causes.push_back("order of axes");
  if (kind == Kind::kAllreduce && dtype == DType::kFloat32) causes.push_back("wire");
  std::string text;
  for (const std::string_view cause : causes) text += std::string(cause) + ", ";
  text.resize(text.size() - 2);
  return text + " or plan";
}

}  // namespace

std::uint64_t bytes_of(const Signature& signature) {
  const SignatureFields fields(signature);
  return fields.dtype < kDTypes ? fields.count * kDTypeInfo[fields.dtype].bytes : 0;
}

std::string describe(const Signature& signature) {
  const auto [kind, op, dtype, count] = SignatureFields(signature);
  if (kind >= kKinds.size()) return "an unknown kind of call (" + std::to_string(kind) + ")";
  std::string text(kKinds[kind].name);
  if (kind == static_cast<std::uint64_t>(Kind::kAborted)) return text;
  if (kind == static_cast<std::uint64_t>(Kind::kLeftToMpi)) {
    const std::string_view inner = count < kKinds.size() ? kKinds[count].name : "a call";
    return std::string(inner) + " of a type or op that gradred leaves to the MPI";
  }
  text += " of " + std::to_string(count) + " ";
  text += dtype < kDTypes ? kDTypeInfo[dtype].name : "elements of an unknown type";
  if (reduces(static_cast<Kind>(kind))) {
    text += " with ";
    const bool known = op < kOps || op == static_cast<std::uint64_t>(kAnyUserOp);
    text += known ? name_of(static_cast<Op>(op)) : "an unknown op";
  }
  return text;
}

std::string describe_with_bytes(const Signature& signature) {
  const SignatureFields fields(signature);
  std::string text = describe(signature);
  if (fields.is(Kind::kAborted) || fields.is(Kind::kLeftToMpi)) return text;
  return text + ", " + std::to_string(bytes_of(signature)) + " bytes";
}

std::string disagreement_text(std::string_view rank, const Signature& asked, std::string_view other,
                              const Signature& other_asked) {
  std::string text = std::string(kDisagree) + ": " + std::string(rank) + " asked for " +
                     describe(asked) + ", " + std::string(other) + " for " + describe(other_asked);
  if (asked.what == other_asked.what)
    text += ", but with another " + what_may_differ(asked, other_asked);
  return text + ". Make the same call on every rank";
}

bool is_disagreement(std::string_view text) { return text.starts_with(kDisagree); }

}  // namespace gradred
