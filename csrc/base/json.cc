#include "base/json.h"

#include <array>
#include <charconv>
#include <cstdio>

namespace gradred {
namespace {

std::string escaped(char letter) {
  if (letter == '"' || letter == '\\') return {'\\', letter};
  if (static_cast<unsigned char>(letter) >= ' ') return {letter};
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "\\u%04x", static_cast<unsigned>(letter));
  return text.data();
}

}  // namespace

Json::Json(std::string_view value) {
  text_ = '"';
  for (const char letter : value) text_ += escaped(letter);
  text_ += '"';
}

Json::Json(double value) {
  std::array<char, 64> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  text_.assign(text.data(), end);
}

Json& Json::put(std::string_view name, const Json& value) {
  append(Json(name).text() + ": " + value.text());
  return *this;
}

Json& Json::add(const Json& value) {
  append("\n" + value.text());
  return *this;
}

std::string Json::text() const { return close_ == 0 ? text_ : text_ + close_; }

void Json::append(const std::string& entry) {
  if (text_.size() > 1) text_ += ", ";
  text_ += entry;
}

}  // namespace gradred
