// Conversion of names from Python to the enumerations of the core.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "base/types.h"
#include "base/user_ops.h"

namespace gradred {

template <class Tag, class Table, class NameOf>
Tag find_tag(const Table& table, std::string_view name, const char* what, NameOf name_of_entry) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (name_of_entry(table[i]) == name) return static_cast<Tag>(i);
  }
  std::string known;
  for (const auto& entry : table) {
    known += (known.empty() ? "" : ", ") + std::string(name_of_entry(entry));
  }
  throw UsageError("there is no " + std::string(what) + " '" + std::string(name) +
                   "'; choose one of " + known);
}

template <class Tag, class Names>
Tag find_tag(const Names& names, std::string_view name, const char* what) {
  return find_tag<Tag>(names, name, what, [](std::string_view entry) { return entry; });
}

inline Op op_named(std::string_view name) {
  if (const auto users = find_user_op(name)) return *users;
  return find_tag<Op>(kOpInfo, name, "op", [](const OpInfo& info) { return info.name; });
}

inline DType dtype_named(std::string_view name) {
  return find_tag<DType>(kDTypeInfo, name, "element type",
                         [](const DTypeInfo& info) { return info.name; });
}

}  // namespace gradred
