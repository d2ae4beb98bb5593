#include "check_report.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "input.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using Json = nlohmann::ordered_json;

/// Lines of one kind that are shown; --json has them all.
constexpr std::size_t most_lines = 100;

struct Amount {
  std::uint64_t tensors = 0, parameters = 0, bytes = 0;
};

std::map<DType, Amount> by_dtype(const Catalog& catalog) {
  std::map<DType, Amount> amounts;
  for (const TensorRow& row : catalog.tensors) {
    Amount& amount = amounts[row.dtype];
    ++amount.tensors;
    amount.parameters += volume(row.shape);
    amount.bytes += volume(row.shape) * info(row.dtype).size_bytes;
  }
  return amounts;
}

Amount total(const Catalog& catalog) {
  Amount all;
  for (const auto& [dtype, amount] : by_dtype(catalog)) {
    all.tensors += amount.tensors;
    all.parameters += amount.parameters;
    all.bytes += amount.bytes;
  }
  return all;
}

std::map<std::string, std::uint64_t> by_placement(const CheckReport& report) {
  std::map<std::string, std::uint64_t> counts;
  for (const StoredAs& stored : report.stored) ++counts[to_string(stored)];
  return counts;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

std::string what_it_is(const CheckReport& report) {
  const Amount all = total(report.catalog);
  std::vector<std::string> dtypes;
  for (const auto& [dtype, amount] : by_dtype(report.catalog))
    dtypes.push_back(std::string(info(dtype).name) + " in " + std::to_string(amount.tensors));
  const std::string world = report.source.world_size > 0 ? ", world size " + std::to_string(report.source.world_size) : "";
  return format_title(report.source) + " checkpoint" + world + ": " + std::to_string(all.tensors) + " tensors, " +
         std::to_string(all.parameters) + " parameters, " + std::to_string(all.bytes) + " bytes" +
         (dtypes.empty() ? "" : "; " + joined(dtypes));
}

std::string placements(const CheckReport& report) {
  std::vector<std::string> parts;
  for (const auto& [placement, count] : by_placement(report)) parts.push_back(std::to_string(count) + " " + placement);
  return "stored as: " + joined(parts);
}

std::string line_of(const LoraSummary& lora, const std::vector<double>& alphas) {
  std::string alpha;
  for (const double one : alphas) alpha += (alpha.empty() ? ", alpha " : ", ") + Json(one).dump();
  return "LoRA: " + std::to_string(lora.tensors) + " tensors" + (lora.ranks.empty() ? "" : ", rank " + as_ranges(lora.ranks)) +
         (lora.targets.empty() ? "" : ", targets " + name_list(lora.targets, 20)) +
         (alpha.empty() ? "; nothing says alpha, so that merging needs --lora-alpha or --lora drop" : alpha);
}

std::string line_of(const ObjectNote& object, const Source& source) {
  return "note: " + printable(source.files[object.file].label) + ": " + printable(object.key) + " is " + printable(object.what) +
         ", not a tensor; it was not executed";
}

std::string line_of(const Finding& finding) {
  return std::string(finding.severity == Severity::error ? "error: " : "note: ") + printable(finding.subject) + ": " + finding.text;
}

std::vector<std::string> non_finite_lines(const CheckReport& report) {
  std::vector<std::string> lines;
  for (std::size_t id = 0; id < report.non_finite.size(); ++id) {
    const NonFinite& found = report.non_finite[id];
    if (found.nan == 0 && found.infinite == 0) continue;
    lines.push_back("note: " + printable(report.catalog.tensors[id].name) + ": " + std::to_string(found.nan) + " NaN and " +
                    std::to_string(found.infinite) + " infinite elements");
  }
  return lines;
}

void append(std::vector<std::string>& lines, std::vector<std::string> more) {
  if (more.size() > most_lines) {
    const std::size_t left = more.size() - most_lines;
    more.resize(most_lines);
    more.push_back("and " + std::to_string(left) + " more of this kind (all of them with --json)");
  }
  lines.insert(lines.end(), more.begin(), more.end());
}

Json dtypes_json(const Catalog& catalog) {
  Json json = Json::object();
  for (const auto& [dtype, amount] : by_dtype(catalog)) {
    json[std::string(info(dtype).name)] = {{"tensors", amount.tensors}, {"parameters", amount.parameters}, {"bytes", amount.bytes}};
  }
  return json;
}

Json lora_json(const LoraSummary& lora, const std::vector<double>& alphas) {
  if (lora.tensors == 0) return nullptr;
  return {{"tensors", lora.tensors}, {"ranks", lora.ranks}, {"alphas", alphas}, {"targets", lora.targets}};
}

Json objects_json(const CheckReport& report) {
  Json json = Json::array();
  for (const ObjectNote& object : report.catalog.objects) {
    json.push_back({{"file", report.source.files[object.file].label}, {"key", object.key}, {"what", object.what}});
  }
  return json;
}

Json set_aside_json(const CheckReport& report) {
  Json json = Json::array();
  for (const SetAside& aside : report.source.set_aside) {
    Json entry{{"name", aside.name}};
    if (aside.dtype)
      entry.update({{"dtype", info(*aside.dtype).name}, {"shape", std::vector<std::uint64_t>(aside.shape.begin(), aside.shape.end())}});
    entry["why"] = aside.reason;
    json.push_back(std::move(entry));
  }
  return json;
}

Json findings_json(const std::vector<Finding>& findings) {
  Json json = Json::array();
  for (const Finding& finding : findings) {
    json.push_back({{"severity", finding.severity == Severity::error ? "error" : "note"},
                    {"subject", finding.subject},
                    {"text", finding.text},
                    {"code", name_of(finding.code)}});
  }
  return json;
}

Json non_finite_json(const CheckReport& report) {
  Json json = Json::array();
  for (std::size_t id = 0; id < report.non_finite.size(); ++id) {
    const NonFinite& found = report.non_finite[id];
    if (found.nan > 0 || found.infinite > 0) {
      json.push_back({{"name", report.catalog.tensors[id].name}, {"nan", found.nan}, {"infinite", found.infinite}});
    }
  }
  return json;
}

std::uint64_t errors_in(const std::vector<Finding>& findings) {
  return static_cast<std::uint64_t>(std::ranges::count(findings, Severity::error, &Finding::severity));
}

}  // namespace

std::string parallel_sizes(const Facts& facts) {
  constexpr std::string_view ending = "_parallel";
  std::vector<std::string> parts;
  for (const auto& [name, value] : facts) {
    if (!name.ends_with(ending)) continue;
    std::string words = name.substr(0, name.size() - ending.size());
    std::ranges::replace(words, '_', ' ');
    parts.push_back(words + " " + std::to_string(value));
  }
  return parts.empty() ? "" : "parallel sizes: " + joined(parts);
}

bool is_complete(const CheckReport& report) {
  return errors_in(report.findings) == 0;
}

std::string format_title(const Source& source) {
  std::string title = source.format;
  std::ranges::transform(title, title.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return title;
}

std::uint64_t total_bytes(const Catalog& catalog) {
  return total(catalog).bytes;
}

std::vector<std::string> to_lines(const CheckReport& report) {
  std::vector<std::string> lines{what_it_is(report)};
  if (const std::string sizes = parallel_sizes(report.catalog.facts); !sizes.empty()) lines.push_back(sizes);
  if (const std::string contents = line_of(report.megatron); !contents.empty()) lines.push_back(contents);
  if (!report.stored.empty()) lines.push_back(placements(report));
  if (const LoraSummary lora = lora_summary(report.catalog.tensors); lora.tensors > 0) lines.push_back(line_of(lora, report.lora_alphas));
  if (!report.source.set_aside.empty()) lines.push_back(line_of_set_aside(report.source));
  std::vector<std::string> objects, findings;
  for (const ObjectNote& object : report.catalog.objects) objects.push_back(line_of(object, report.source));
  for (const Finding& finding : report.findings) findings.push_back(line_of(finding));
  append(lines, std::move(objects));
  append(lines, non_finite_lines(report));
  append(lines, std::move(findings));
  const std::uint64_t errors = errors_in(report.findings);
  lines.push_back(errors == 0 ? "complete" : "incomplete: " + counted(errors, "error"));
  return lines;
}

std::string to_json(const CheckReport& report) {
  const Amount all = total(report.catalog);
  Json json{{"complete", is_complete(report)},
            {"format", report.source.format},
            {"folder", report.source.folder},
            {"world_size", report.source.world_size},
            {"files", report.source.files.size()},
            {"tensors", all.tensors},
            {"parameters", all.parameters},
            {"bytes", all.bytes},
            {"dtypes", dtypes_json(report.catalog)},
            {"stored_as", by_placement(report)},
            {"facts", report.catalog.facts},
            {"layers", report.megatron.layers},
            {"experts", report.megatron.experts},
            {"lora", lora_json(lora_summary(report.catalog.tensors), report.lora_alphas)},
            {"objects", objects_json(report)},
            {"set_aside", set_aside_json(report)},
            {"findings", findings_json(report.findings)}};
  if (!report.non_finite.empty()) json["non_finite"] = non_finite_json(report);
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace unshard
