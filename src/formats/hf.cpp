// A Hugging Face model folder. Which files are its weights: hf_files.cpp. A file is read by what its name says, as transformers does:
// `.safetensors` by its header (safetensors_header.cpp), others as a state dict of torch.save (torch_file.h). Tied tensors of a state dict
// are views of one storage.
#include "hf.h"

#include <algorithm>
#include <set>
#include <utility>

#include "hdf5_model.h"
#include "hf_files.h"
#include "hf_names.h"
#include "safetensors_header.h"
#include "torch_pieces.h"
#include "unshard/error.h"

namespace unshard {
namespace {

/// What one file holds against what the index says of it.
void compare_with_index(const Source& source, FileId file, const std::vector<Piece>& pieces, std::vector<Finding>& findings) {
  const std::string index = "the index " + printable(source.index_label);
  const std::string& label = source.files[file].label;
  std::set<std::string_view> here;
  for (const Piece& piece : pieces) here.insert(piece.name);
  std::vector<std::string> lacking, unnamed;
  for (const IndexEntry& entry : source.index) {
    if (entry.file == file && !here.contains(entry.name)) lacking.push_back(entry.name);
  }
  for (const std::string_view name : here) {
    const auto entry = std::ranges::lower_bound(source.index, name, {}, [](const IndexEntry& e) -> std::string_view { return e.name; });
    if (entry == source.index.end() || entry->name != name) {
      unnamed.emplace_back(name);
    } else if (entry->file != file) {
      findings.push_back({Severity::error, std::string(name),
                          "is in " + printable(label) + ", but " + index + " says it is in " + printable(source.files[entry->file].label) +
                              "; remove the copy that is out of date"});
    }
  }
  constexpr std::size_t most_names = 20;
  if (!lacking.empty()) {
    findings.push_back(
        {Severity::error, label,
         "lacks " + counted(lacking.size(), "tensor") + " that " + index + " says it holds: " + name_list(lacking, most_names)});
  }
  if (!unnamed.empty()) {
    findings.push_back({Severity::error, label,
                        "holds " + counted(unnamed.size(), "tensor") + " that " + index +
                            " does not name, so that no loader reads them: " + name_list(unnamed, most_names)});
  }
}

Piece piece_of(const SafetensorsTensor& tensor) {
  Piece piece{tensor.name, tensor.dtype, tensor.shape, {}};
  if (tensor.size_bytes == 0) return piece;
  Chunk chunk;
  chunk.box = whole(tensor.shape);
  chunk.strides = row_major_strides(tensor.shape);
  chunk.position = chunk.record_position = tensor.position;
  chunk.record_bytes = tensor.size_bytes;
  piece.chunks.push_back(chunk);
  return piece;
}

ShardContents safetensors_contents(File& file, const std::string& label) {
  const SafetensorsHeader header = read_safetensors_header(file, printable(label));
  ShardContents contents;
  contents.pieces.reserve(header.tensors.size());
  for (const SafetensorsTensor& tensor : header.tensors) contents.pieces.push_back(piece_of(tensor));
  if (!header.metadata || !header.metadata->contains("format")) {
    contents.findings.push_back({Severity::note, label, "has no __metadata__ with a format: older releases of transformers fail on it"});
  }
  return contents;
}

ShardContents torch_contents(File& file, const std::string& label) {
  TorchContents read = read_torch_file(file, label);
  ShardContents contents;
  contents.objects = std::move(read.objects);
  contents.pieces.reserve(read.entries.size());
  for (const TorchEntry& entry : read.entries) {
    if (entry.kind == TorchEntry::Kind::tensor) {
      contents.pieces.push_back(whole_piece(entry));
    } else {
      contents.findings.push_back(
          {Severity::error, entry.path, "is one rank's piece of a sharded tensor; give the folder with the files of all ranks"});
    }
  }
  for (const auto& [path, reason] : read.unreadable) contents.findings.push_back({Severity::error, path, reason});
  return contents;
}

class HfFormat final : public CheckpointFormat {
 public:
  [[nodiscard]] std::string_view name() const override { return "hf"; }
  [[nodiscard]] std::string_view description() const override {
    return "Hugging Face model folder (safetensors, pytorch_model.bin or model.h5)";
  }

  [[nodiscard]] bool recognises(const Tree& tree, const std::string& folder) const override { return has_hf_weights(tree, folder); }

  [[nodiscard]] Source describe(const Tree& tree, const std::vector<std::string>& folders) const override {
    Source source = describe_hf_files(tree, folders);
    source.format = name();
    return source;
  }

  [[nodiscard]] ShardContents read_headers(const Source& source, FileId file, File& open_file) const override {
    const std::string& label = source.files[file].label;
    if (label.ends_with(hdf5_weights.ending)) return hdf5_contents(open_file, label);  // which never has an index
    ShardContents contents = label.ends_with(".safetensors") ? safetensors_contents(open_file, label) : torch_contents(open_file, label);
    if (!source.index_label.empty()) compare_with_index(source, file, contents.pieces, contents.findings);
    return contents;
  }
};

}  // namespace

const CheckpointFormat& hf_format() {
  static const HfFormat format;
  return format;
}

}  // namespace unshard
