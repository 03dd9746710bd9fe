#include "planner/python/values.h"

#include <cmath>
#include <cstdint>

namespace foldwise {

namespace nb = nanobind;
using nlohmann::json;

nb::object to_python(const json& value, nb::handle kind) {
  switch (value.type()) {
    case json::value_t::object: {
      nb::object made = kind();
      for (const auto& [key, member] : value.items())
        if (PyDict_SetItem(made.ptr(), nb::str(key.data(), key.size()).ptr(), to_python(member, kind).ptr()) != 0)
          nb::raise_python_error();
      return made;
    }
    case json::value_t::array: {
      nb::list made;
      for (const json& member : value) made.append(to_python(member, kind));
      return made;
    }
    case json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      return nb::str(text.data(), text.size());
    }
    case json::value_t::boolean:
      return nb::bool_(value.get<bool>());
    case json::value_t::number_integer:
      return nb::int_(value.get<std::int64_t>());
    case json::value_t::number_unsigned:
      return nb::int_(value.get<std::uint64_t>());
    case json::value_t::number_float:
      if (const double number = value.get<double>(); std::isfinite(number)) return nb::float_(number);
      return nb::none();
    case json::value_t::null:
    case json::value_t::binary:
    case json::value_t::discarded:
      break;
  }
  return nb::none();
}

}  // namespace foldwise
