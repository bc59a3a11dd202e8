// Answers as they come: UTF-8, stop strings, and the parts of a chat answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/answer_reader.h"
#include "server/api/chat_format.h"

namespace reprise::server {
namespace {

using engine::MakeNanoTokenizer;
using testing::ElementsAre;
using testing::HasSubstr;

// ---- UTF-8 -------------------------------------------------------------------------------------

TEST(Utf8Stream, CharactersComeWhole) {
  Utf8Stream stream;
  std::string text;
  for (const char byte : std::string("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x8e\xb5z")) {
    text += stream.Add(std::string(1, byte));
  }
  EXPECT_EQ(text, "aé€🎵z");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Utf8Stream, WhatIsNoCharacterIsReplaced) {
  struct Case {
    std::string bytes, text;
  };
  for (const Case& c :
       {Case{"\xff", "\uFFFD"}, Case{"\x80", "\uFFFD"}, Case{"\xc0\xaf", "\uFFFD\uFFFD"},
        Case{"\xe2\x82x", "\uFFFDx"}, Case{"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
        Case{"\xf5\x80", "\uFFFD\uFFFD"}, Case{"\xc3", "\uFFFD"}}) {
    Utf8Stream stream;
    const std::string text = stream.Add(c.bytes);
    EXPECT_EQ(text + stream.Finish(), c.text);
  }
}

// ---- Stop strings ------------------------------------------------------------------------------

TEST(StopStrings, AreFoundAcrossPieces) {
  StopStrings stops({"END", "\n\n"});
  EXPECT_EQ(stops.Add("abE"), "ab");
  EXPECT_EQ(stops.Add("Nx"), "ENx");
  EXPECT_EQ(stops.Add("y\n"), "y");
  EXPECT_FALSE(stops.found());
  EXPECT_EQ(stops.Add("\nmore"), "");
  EXPECT_TRUE(stops.found());
  EXPECT_EQ(stops.Add("and more"), "");
}

TEST(StopStrings, TheFirstOneCounts) {
  StopStrings stops({"cd", "bc"});
  EXPECT_EQ(stops.Add("abcd"), "a");
}

TEST(StopStrings, WhatWasHeldBackComesAtTheEnd) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.Add("xEN"), "x");
  EXPECT_EQ(stops.Finish(), "EN");
}

// ---- The chat format ---------------------------------------------------------------------------

class ChatTest : public testing::Test {
 protected:
  ChatTest() : tokenizer_(MakeNanoTokenizer()) {
    auto format = ChatFormat::Load(std::string(RP_SOURCE_DIR) + "/gpu/nano", tokenizer_.get());
    EXPECT_TRUE(format.ok()) << format.status();
    format_ = std::make_unique<ChatFormat>(*std::move(format));
  }
  std::string Shown(const std::vector<TokenId>& tokens) const {
    return tokenizer_->Decode(tokens, true);
  }
  std::string Encoded(const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) {
    const auto prompt = format_->Encode(messages, options);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    return prompt.ok() ? Shown(prompt->tokens) : "";
  }

  std::unique_ptr<engine::Tokenizer> tokenizer_;
  std::unique_ptr<ChatFormat> format_;
};

TEST_F(ChatTest, ATurnIsWhatTheModelWasTrainedOn) {
  const std::string system =
      "<bos><system>You are nano, a small agent. Tools: read FILE, calc EXPR, find WORD.";
  EXPECT_EQ(Encoded({{.role = "user", .content = "Hi."}}), system + "<user>Hi.<assistant></think>");
  EXPECT_EQ(Encoded({{.role = "user", .content = "Hi."}}, {.thinking = true}),
            system + "<user>Hi.<assistant><think>");
  ToolCall call{.id = "1", .name = "calc"};
  call.arguments["input"] = "47*12";
  EXPECT_EQ(Encoded({{.role = "user", .content = "Compute."},
                     {.role = "assistant", .calls = {call}},
                     {.role = "tool", .content = "564", .call_id = "1"}}),
            system +
                "<user>Compute.<assistant></think><call>calc 47*12</call><eos><user><result>564"
                "</result><assistant></think>");
}

TEST_F(ChatTest, TextNeverBecomesASpecialToken) {
  ToolCall call{.id = "1", .name = "read"};
  call.arguments["file"] = "</call><eos>";
  for (const ChatMessage& message : {ChatMessage{.role = "user", .content = "<eos>"},
                                     ChatMessage{.role = "system", .content = "<eos>"},
                                     ChatMessage{.role = "tool", .content = "<eos>"},
                                     ChatMessage{.role = "assistant", .calls = {call}}}) {
    const auto prompt = format_->Encode({message}, {});
    ASSERT_TRUE(prompt.ok());
    const TokenId end = tokenizer_->Special("<eos>");
    const auto count = std::count(prompt->tokens.begin(), prompt->tokens.end(), end);
    EXPECT_EQ(count, message.role == "assistant" ? 1 : 0) << message.role;
  }
}

TEST_F(ChatTest, AnAnswersOwnIdsAreUsed) {
  const std::vector<TokenId> ids = {'a', 'b', tokenizer_->Special("</think>"), 'c', 257};
  const ChatMessage thought{.role = "assistant", .content = "c", .ids = ids, .thought = true};
  EXPECT_THAT(
      Encoded({{.role = "user", .content = "x"}, thought, {.role = "user", .content = "y"}}),
      HasSubstr("<assistant><think>ab</think>c<eos><user>y"));
  const ChatMessage plain{.role = "assistant", .content = "c", .ids = {'c'}};
  EXPECT_THAT(Encoded({{.role = "user", .content = "x"}, plain}),
              HasSubstr("<assistant></think>c<eos><assistant>"));
}

TEST_F(ChatTest, ReasoningOfEarlierTurnsIsDroppedWhereTheFormatSaysSo) {
  const auto format = ChatFormat::Parse(
      R"({"user": "<user>", "assistant": "<assistant>", "end": "<eos>", "think_open": "<think>",
          "think_close": "</think>", "keep_reasoning": "never"})",
      "test", tokenizer_.get());
  ASSERT_TRUE(format.ok()) << format.status();
  const std::vector<TokenId> ids = {'a', tokenizer_->Special("</think>"), 'c', 257};
  const auto prompt = format->Encode({{.role = "user", .content = "x"},
                                      {.role = "assistant", .ids = ids, .thought = true},
                                      {.role = "user", .content = "y"}},
                                     {.thinking = true});
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(Shown(prompt->tokens), "<user>x<assistant></think>c<eos><user>y<assistant><think>");
  // The next prompt agrees with this one up to the header's last token.
  EXPECT_EQ(prompt->stable_tokens, prompt->tokens.size() - 1);
  EXPECT_EQ(prompt->history_tokens, prompt->tokens.size() - 2);
}

TEST_F(ChatTest, BadDataIsNamed) {
  for (const auto& [json, word] :
       {std::pair{"[]", "not a JSON object"},
        {R"({"usr": "x"})", "unknown key usr"},
        {R"({"user": 5})", "user must be a string"},
        {R"({"user": "<user>"})", "are needed"},
        {R"({"user": "u", "assistant": "a", "end": "<no>"})", "no special token"},
        {R"({"keep_reasoning": "maybe"})", "always, with_tools or never"}}) {
    const auto format = ChatFormat::Parse(json, "file", tokenizer_.get());
    EXPECT_THAT(Message(format.status()), HasSubstr(word)) << json;
  }
}

// ---- Answers taken apart -----------------------------------------------------------------------

struct Taken {
  std::string content, reasoning;
  std::vector<ToolCall> calls;
};

Taken TakeApart(AnswerReader* reader, const engine::Tokenizer& tokenizer, const std::string& text) {
  Taken taken;
  const auto add = [&taken](const AnswerDelta& delta) {
    taken.content += delta.content;
    taken.reasoning += delta.reasoning;
    for (const ToolCall& call : delta.calls) taken.calls.push_back(call);
  };
  for (const TokenId token : tokenizer.Encode(text, true)) add(reader->Add(token));
  add(reader->Finish());
  return taken;
}

TEST_F(ChatTest, AnAnswerHasReasoningContentAndCalls) {
  AnswerReader reader(tokenizer_.get(), format_.get(), {{.name = "calc", .arguments = {"expr"}}},
                      true, {});
  const Taken taken =
      TakeApart(&reader, *tokenizer_, "I use calc.</think>so <call>calc 2+2</call>done<eos>");
  EXPECT_EQ(taken.reasoning, "I use calc.");
  EXPECT_EQ(taken.content, "so done");
  ASSERT_EQ(taken.calls.size(), 1u);
  EXPECT_EQ(taken.calls[0].name, "calc");
  EXPECT_EQ(taken.calls[0].arguments.dump(), R"({"expr":"2+2"})");
  EXPECT_TRUE(reader.called());
}

TEST_F(ChatTest, ACallThatDoesNotEndIsContent) {
  AnswerReader reader(tokenizer_.get(), format_.get(), {}, false, {});
  const Taken taken = TakeApart(&reader, *tokenizer_, "x<call>calc 2");
  EXPECT_EQ(taken.content, "x<call>calc 2");
  EXPECT_FALSE(reader.called());
}

TEST_F(ChatTest, AStopStringEndsTheContent) {
  AnswerReader reader(tokenizer_.get(), format_.get(), {}, false, {"lo w"});
  EXPECT_EQ(TakeApart(&reader, *tokenizer_, "hello world").content, "hel");
  EXPECT_TRUE(reader.stopped());
}

// DeepSeek's calls, in the shape of its format: a tag for every argument, text or JSON.
TEST_F(ChatTest, CallsOfElements) {
  const auto format = ChatFormat::Parse(
      R"({"user": "<user>", "assistant": "<assistant>", "end": "<eos>", "call_style": "elements",
          "calls_open": "[calls]", "calls_close": "[/calls]",
          "invoke_open": "[invoke name=\"{name}\"]", "invoke_close": "[/invoke]",
          "argument_open": "[arg name=\"{name}\" string=\"{string}\"]", "argument_close": "[/arg]"})",
      "test", tokenizer_.get());
  ASSERT_TRUE(format.ok());
  // Tags end with '>' in the real format; the parser looks for that.
  const auto dsml = ChatFormat::Parse(
      R"({"user": "<user>", "assistant": "<assistant>", "end": "<eos>", "call_style": "elements",
          "calls_open": "<calls>", "calls_close": "</calls>",
          "invoke_open": "<invoke name=\"{name}\">", "invoke_close": "</invoke>",
          "argument_open": "<arg name=\"{name}\" string=\"{string}\">", "argument_close": "</arg>"})",
      "test", tokenizer_.get());
  ASSERT_TRUE(dsml.ok());
  const auto calls = dsml->ParseCalls(
      R"(<invoke name="f"><arg name="a" string="true">x < y</arg><arg name="n" string="false">[1,2]</arg>
         </invoke><invoke name="g"></invoke>)",
      {});
  ASSERT_TRUE(calls.ok()) << calls.status();
  ASSERT_EQ(calls->size(), 2u);
  EXPECT_EQ((*calls)[0].arguments.dump(), R"({"a":"x < y","n":[1,2]})");
  EXPECT_EQ((*calls)[1].name, "g");
  for (const char* bad : {"", "<invoke", R"(<invoke name="f">)",
                          R"(<invoke name="f"><arg name="a" string="true">x</invoke>)",
                          R"(<invoke name=""></invoke>)"}) {
    EXPECT_FALSE(dsml->ParseCalls(bad, {}).ok()) << bad;
  }
  // What was parsed is encoded to the same.
  const auto prompt = dsml->Encode({{.role = "assistant", .calls = *calls}}, {});
  ASSERT_TRUE(prompt.ok());
  EXPECT_THAT(Shown(prompt->tokens), HasSubstr(R"(<arg name="n" string="false">[1,2]</arg>)"));
}

}  // namespace
}  // namespace reprise::server
