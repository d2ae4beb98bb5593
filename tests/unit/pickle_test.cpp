// The stack machine of pickles, one opcode at a time, and what it refuses. Inputs are written by hand from CPython's Lib/pickletools.py.
#include "formats/pickle.h"

#include <gtest/gtest.h>

#include "support/pickle_text.h"

namespace unshard::pickle {
namespace {

using namespace unshard::testing;
using namespace std::string_literals;
namespace make = unshard::testing::pickled;

Tree parse(const std::string& bytes) {
  return read(std::as_bytes(std::span(bytes)), "file");
}

/// The tree as Python would print it; calls as `module.name(args)`, with `[=state]` and `{items}` behind.
std::string show(const Node& node);

std::string show_all(std::span<const Node* const> nodes, char open, char close) {
  std::string text(1, open);
  for (const Node* node : nodes) text += (text.size() > 1 ? ", " : "") + show(*node);
  return text + close;
}

std::string show_made(const Node& node) {
  std::string text = show(*node.callee()) + show_all(node.args(), '(', ')');
  if (!node.pairs().empty()) text += show_all(node.pairs(), '{', '}');
  if (!node.appended().empty()) text += show_all(node.appended(), '[', ']');
  if (node.state() != nullptr) text += "=" + show(*node.state());
  return text;
}

std::string show(const Node& node) {
  switch (node.kind) {
    case Kind::text:
      return "'" + std::string(node.view()) + "'";
    case Kind::bytes:
      return "b'" + std::string(node.view()) + "'";
    case Kind::real:
      return std::to_string(node.real);
    case Kind::tuple:
      return show_all(node.elements(), '(', ')');
    case Kind::list:
      return show_all(node.elements(), '[', ']');
    case Kind::set:
      return show_all(node.elements(), '<', '>');
    case Kind::dict:
      return show_all(node.pairs(), '{', '}');
    case Kind::call:
      return show_made(node);
    case Kind::object:
      return "new " + show_made(node);
    case Kind::persistent:
      return "persistent " + show(*node.callee());
    default:
      return describe(node);
  }
}

struct Sound {
  const char* name;
  std::string input;
  const char* shows;
};

TEST(Pickle, EveryOpcodeMakesItsValue) {
  const Sound table[] = {
      {"none and booleans", "(N\x88\x89t."s, "(None, True, False)"},
      {"protocol 0 numbers", "(I01\nI00\nI-7\nL12L\nF1.5\nt.", "(True, False, -7, 12, 1.500000)"},
      {"binary numbers", "(K\xFFM\xE8\x03J\xFE\xFF\xFF\xFFt.", "(255, 1000, -2)"},
      {"LONG1", "(\x8A\x00\x8A\x01\xFF\x8A\x02\x00\x80\x8A\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7Ft."s, "(0, -1, -32768, 9223372036854775807)"},
      {"LONG1 of 9 bytes", "\x8A\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s, "an integer of more than 64 bits"},
      {"LONG4", "\x8B\x01\x00\x00\x00\x05."s, "5"},
      {"LONG beyond 64 bits", "L99999999999999999999L\n.", "an integer of more than 64 bits"},
      {"BINFLOAT is big-endian", "G\x3F\xF8\x00\x00\x00\x00\x00\x00."s, "1.500000"},
      {"protocol 0 texts", "(S'a\\n\\x41'\nS\"b\"\nVu\\u00e9\nt.", "('a\nA', 'b', 'u\xC3\xA9')"},
      {"texts of all lengths",
       "(U\x01"
       "aT\x01\0\0\0bX\x01\0\0\0c\x8C\x01"
       "d\x8D\x01\0\0\0\0\0\0\0et."s,
       "('a', 'b', 'c', 'd', 'e')"},
      {"bytes of all lengths",
       "(C\x01"
       "aB\x01\0\0\0b\x8E\x01\0\0\0\0\0\0\0c\x96\x01\0\0\0\0\0\0\0dt."s,
       "(b'a', b'b', b'c', b'd')"},
      {"tuples", "()N\x85NN\x86NNN\x87(NNNNtt."s, "((), (None), (None, None), (None, None, None), (None, None, None, None))"},
      {"lists", "(](NNe]Na(Nlt.", "([None, None], [None], [None])"},
      {"dicts", "(}(K\x01NK\x02Nu}K\x03Ns(K\x04Ndt."s, "({1, None, 2, None}, {3, None}, {4, None})"},
      {"sets", "(\x8F(K\x01K\x02\x90(K\x03\x91t."s, "(<1, 2>, <3>)"},
      {"pop, dup and marks", "(K\x01K\x02\x30\x32(N1t."s, "(1, 1)"},
      {"pop of a mark", "K\x01(0."s, "1"},
      {"memo",
       "(K\x05q\x00"
       "0h\x00K\x06r\x01\x00\x00\x00"
       "0j\x01\x00\x00\x00K\x07p2\n0g2\nt."s,
       "(5, 6, 7)"},
      {"MEMOIZE numbers from 0", "(K\x05\x94K\x06\x94h\x00h\x01t."s, "(5, 6, 5, 6)"},
      {"GLOBAL",
       "\x80\x03"
       "ca.b\nc\n.",
       "a.b.c"},
      {"STACK_GLOBAL", "\x80\x04\x8C\x01"s + "a\x8C\x01" + "b\x93.", "a.b"},
      {"REDUCE", "ca\nb\n(K\x01K\x02tR."s, "a.b(1, 2)"},
      {"NEWOBJ", "ca\nb\n)\x81.", "new a.b()"},
      {"NEWOBJ_EX", "ca\nb\nK\x01\x85}\x92."s, "new a.b(1)"},
      {"INST", "(K\x01ia\nb\n."s, "new a.b(1)"},
      {"OBJ", "(ca\nb\nK\x01o."s, "new a.b(1)"},
      {"BUILD", "ca\nb\n)\x81}b.", "new a.b()={}"},
      {"items of a call", "ca\nb\n)RK\x01K\x02s(K\x03K\x04u."s, "a.b(){1, 2, 3, 4}"},
      {"appends to a call",
       "ca\nb\n)RK\x01"
       "a."s,
       "a.b()[1]"},
      {"persistent ids", "(Pkey\nK\x01Qt."s, "(persistent 'key', persistent 1)"},
      {"extensions", "(\x82\x07\x83\x07\x01\x84\x07\x00\x00\x01t."s,
       "(copyreg extension 7, copyreg extension 263, copyreg extension 16777223)"},
      {"FRAME", "\x80\x04\x95\x02\x00\x00\x00\x00\x00\x00\x00N."s, "None"},
      {"Python 2's names at protocol 2", "\x80\x02(c__builtin__\neval\nccommands\nPopen\nccopy_reg\n_reconstructor\nt."s,
       "(builtins.eval, subprocess.Popen, copyreg._reconstructor)"},
      {"no Python 2 names from protocol 3",
       "\x80\x03"
       "c__builtin__\neval\n."s,
       "__builtin__.eval"},
  };
  for (const Sound& row : table) EXPECT_EQ(show(parse(row.input).root()), row.shows) << row.name;
}

struct Defect {
  const char* name;
  std::string input;
  const char* says;
};

TEST(Pickle, DefectsAreNamed) {
  const Defect table[] = {
      {"unknown opcode", "\x38.", "pickle is damaged at byte 0 of 2: unknown opcode 56"},
      {"protocol 6", "\x80\x06N.", "protocol 6, known are 0 to 5"},
      {"empty stack at STOP", ".", "nothing on the stack"},
      {"POP of nothing", "0.", "nothing on the stack"},
      {"pop beyond a mark", "K\x01(\x85.", "a tuple of more than is on the stack"},
      {"TUPLE without a mark", "Nt.", "no mark on the stack"},
      {"POP_MARK without a mark", "1.", "no mark on the stack"},
      {"APPEND to nothing", "Na.", "nothing on the stack"},
      {"APPENDS to nothing", "(Ne.", "nothing to append to"},
      {"APPENDS to what lies below a mark", "]((Ne.", "nothing to append to"},
      {"APPEND to a number", "K\x01Na.", "1 can't be changed"},
      {"SETITEMS to nothing", "(NNu.", "nothing to set items of"},
      {"SETITEMS of a tuple", ")(NNu.", "a tuple can't be changed"},
      {"key without a value", "}(Nu.", "a key without a value"},
      {"DICT with an odd number", "(Nd.", "a key without a value"},
      {"memo entry never made", "h\x01.", "memo entry 1 was never made"},
      {"memo entry 2^32 - 1", "Nr\xFF\xFF\xFF\xFF.", "memo entry 4294967295 in a pickle of so few bytes"},
      {"negative memo entry", "Np-1\n.", "a memo entry without a number"},
      {"negative length", "\x8B\xFB\xFF\xFF\xFF.", "an integer of -5 bytes"},
      {"arguments that are no tuple", "ca\nb\nNR.", "a call whose arguments are no tuple"},
      {"object arguments that are no tuple", "ca\nb\nN\x81.", "an object whose arguments are no tuple"},
      {"OBJ without a class", "(o.", "an object without a class"},
      {"global whose name is a number", "K\x01K\x02\x93.", "a global whose name is no string"},
      {"BUILD of a number", "K\x01}b.", "1 can't be changed"},
      {"BUILD twice", "ca\nb\n)\x81}b}b.", "an object whose state is set twice"},
      {"string without quotes", "Sabc\n.", "a string without its quotes"},
      {"float that is no number", "Fabc\n.", "a float that is no number"},
      {"no end", "N", "pickle is truncated"},
      {"nothing at all", "", "pickle is truncated"},
      {"text of 4 GiB", "X\xFF\xFF\xFF\xFF.", "pickle is truncated: an item at byte 0 goes beyond its 6 bytes"},
      {"text of 2^63 bytes", "\x8D\x00\x00\x00\x00\x00\x00\x00\x80."s, "pickle is truncated"},
      {"integer of 2 GiB", "\x8B\xFF\xFF\xFF\x7F.", "pickle is truncated"},
      {"frame beyond the end", "\x95\x09\x00\x00\x00\x00\x00\x00\x00N."s, "pickle is truncated"},
      {"line without an end", "cabc", "pickle is truncated"},
      {"buffers outside the pickle", "\x97.", "buffers outside of it"},
  };
  for (const Defect& row : table) {
    try {
      (void)parse(row.input);
      ADD_FAILURE() << row.name << ": accepted";
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("file: ")) << row.name;
      EXPECT_NE(std::string(error.what()).find(row.says), std::string::npos) << row.name << ": " << error.what();
    }
  }
}

TEST(Pickle, EveryTruncationIsTruncated) {
  const std::string whole =
      make::whole(make::dict({{"key", make::call(make::global("a", "b"), {make::number(5), make::text("text"), make::bytes("xy")})},
                              {"list", make::list({make::none, make::yes})}}));
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_THROW((void)parse(whole.substr(0, size)), Truncated) << size;
  EXPECT_EQ(parse(whole + "rest").size_bytes(), whole.size());
}

TEST(Pickle, AMemoEntryIsTheSameNodeAndMayContainItself) {
  const std::string input =
      "(]q\x00h\x00"
      "ah\x00t."s;  // a = []; a.append(a); (a, a)
  const Tree tree = parse(input);
  const auto both = tree.root().elements();
  EXPECT_EQ(both[0], both[1]);
  EXPECT_EQ(both[0]->elements()[0], both[0]);
}

TEST(Pickle, AMillionNestedTuplesNeedNoStack) {
  const std::string input = ")" + std::string(1'000'000, '\x85') + ".";
  const Tree tree = parse(input);
  std::size_t depth = 0;
  for (const Node* node = &tree.root(); !node->elements().empty(); node = node->elements()[0]) ++depth;
  EXPECT_EQ(depth, 1'000'000U);
}

TEST(Pickle, TheLastOfEqualKeysCounts) {
  const std::string input = make::whole(make::dict({{"a", make::number(1)}, {"a", make::number(2)}}));
  const Tree tree = parse(input);
  EXPECT_EQ(tree.root().find("a")->integer, 2);
  EXPECT_EQ(tree.root().find("b"), nullptr);
}

TEST(Pickle, ManyItemsInBatchesStayInOrder) {
  std::string input = "]";
  for (int batch = 0; batch < 5; ++batch) {
    input += "(";
    for (int i = 0; i < 1000; ++i) input += make::number(batch * 1000 + i);
    input += "e";
  }
  input += ".";
  const Tree tree = parse(input);
  ASSERT_EQ(tree.root().elements().size(), 5000U);
  EXPECT_EQ(tree.root().elements()[4999]->integer, 4999);
  EXPECT_EQ(tree.root().elements()[1000]->integer, 1000);
}

TEST(Pickle, NamesInDescriptionsAreMadePrintable) {
  const std::string input =
      "\x80\x03"
      "ca\x1B[31m\nb\n)R.";
  EXPECT_EQ(describe(parse(input).root()).find('\x1B'), std::string::npos);
}

}  // namespace
}  // namespace unshard::pickle
