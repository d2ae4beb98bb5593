// What discovery finds: which files hold the checkpoint, seen by which nodes. File names only; no header has been read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unshard/comm.h"
#include "unshard/error.h"
#include "unshard/file_system.h"
#include "unshard/tensor.h"

namespace unshard {

/// One path below the folders that the user gave, as the nodes of the job see it.
struct TreeEntry {
  FileStatus status;                 ///< as the lowest node that sees it has it
  std::vector<std::uint32_t> nodes;  ///< sorted nodes that see this file (or a folder of this name)
  std::vector<std::vector<std::uint32_t>>
      other_copies;     ///< nodes that see another file of this name and size (inode or time differ): maybe a copy
  std::string problem;  ///< "": none; else why it can't be used: two nodes have files of different sizes, a folder that can't be listed
  std::string content;  ///< of the text files that discovery needs (trackers, *_config.json, indexes of Hugging Face folders); else empty
};

/// The given folders, three levels deep, as one tree over all nodes: path (as the user would write it) to entry. The same on every rank.
/// Symbolic links are followed but no folder is entered twice.
struct Tree {
  std::vector<std::string> roots;  ///< the folders given, without trailing slashes
  std::map<std::string, TreeEntry> entries;
  std::uint32_t node_count = 1;

  [[nodiscard]] const TreeEntry* find(const std::string& path) const;
  /// Names of what lies directly in `folder`, sorted.
  [[nodiscard]] std::vector<std::string> children(const std::string& folder) const;
};

/// Collective. One rank of each node lists `roots`; the lists are united. A root that no node has: Error(bad_input). A file whose size
/// differs between two nodes keeps that as its `problem`, naming both hosts: discover() throws it when the checkpoint uses the file.
[[nodiscard]] Tree list_tree(Comm& comm, FileSystem& files, const std::vector<std::string>& roots);

/// Another file of the same name and size, in another folder given or on another node's disk. Its headers must be the same (read_catalog
/// compares them).
struct FileCopy {
  std::string path;
  std::vector<std::uint32_t> nodes;  ///< sorted nodes that see it
};

/// One file of the checkpoint that holds weights.
struct ShardFile {
  std::string path;   ///< to open it
  std::string label;  ///< relative to the folder given: for messages and reports
  std::uint64_t size_bytes = 0;
  std::uint32_t rank = 0;            ///< of the training job, where the format has it
  std::vector<std::uint32_t> nodes;  ///< sorted nodes that see it
  std::vector<FileCopy> copies;      ///< others that claim to be the same
  Bytes contents = {};               ///< what the checkpoint's index files say lies in it, as its format packs that; empty without such
};

enum class Severity : std::uint8_t { note, error };

/// Something that `check` reports. `merge` stops with the errors.
struct Finding {
  Severity severity = Severity::error;
  std::string subject;  ///< file or tensor
  std::string text;     ///< what is wrong, expected and actual; what to do
  ErrorCode code = ErrorCode::bad_input;
};

/// What the index of a folder says: the tensor `name` is in file `file`.
struct IndexEntry {
  std::string name;
  std::uint32_t file = 0;  ///< position in Source::files
};

/// What a format must know of names that only the user or the model's family explains, to place the pieces of those tensors.
struct NameHelp {
  std::vector<std::pair<std::string, std::string>> renames;     ///< parts of stored names and what replaces them (plain --custom-mapping)
  std::vector<std::pair<std::string, std::string>> placements;  ///< pattern of a name, and how ranks share such a tensor (docs/families.md)
};

/// A tensor that an index file declares.
struct IndexedTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

/// What an index file names beside the weights: optimizer state, objects. It is not read.
struct SetAside {
  std::string name;
  std::optional<DType> dtype;  ///< none: an object, no tensor
  Shape shape;
  std::string reason;  ///< "optimizer state"
};

/// Where an object lies that says more of the checkpoint than the index files do.
struct StateObject {
  std::string file;  ///< relative to the folder; "": there is none
  std::uint64_t position = 0, size_bytes = 0;
};

/// The files of one checkpoint in one format.
struct Source {
  std::string format;                         ///< name of a row of the format table: "fsdp"
  std::string folder;                         ///< where the shards lie (the first, when there are several roots)
  std::vector<std::string> folders;           ///< all of these folders
  std::uint32_t world_size = 0;               ///< of the training job; 0: the format has none
  std::vector<ShardFile> files;               ///< sorted by rank, then label; the position is the file's number everywhere
  std::vector<std::string> config_folders;    ///< where config.json may lie, in order of preference
  std::vector<Finding> findings;              ///< missing ranks, left-overs of another run …
  std::string index_label;                    ///< the index that names the tensors' files; "": none
  std::vector<IndexEntry> index;              ///< sorted by name; only tensors whose file is there
  std::optional<std::uint64_t> stated_bytes;  ///< what the index says all tensors take together
  bool names_are_published = true;            ///< false: the tensors have Megatron's names, which rules translate
  NameHelp names;                             ///< what the user and the model's family say of such names

  // Of formats whose index must be read before the headers of their files can be (read_index_files).
  std::vector<ShardFile> index_files;
  std::vector<IndexedTensor> tensors;  ///< the weights that the index files declare, in stored order
  std::vector<SetAside> set_aside;
  StateObject state;
  std::map<std::string, std::uint64_t> facts;  ///< numbers that the index files state (Catalog::facts)
  std::string shape_hint;             ///< what may be wrong where a tensor is smaller than config.json implies; "": nothing is known
  std::vector<std::string> sections;  ///< what stands in front of the names of the weights ("model."): the dictionaries that hold them
};

}  // namespace unshard
