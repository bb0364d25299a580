// tomlplusplus behind dp/toml.h: the one place that includes it.

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <toml++/toml.h>

extern "C" {
#include "dp/alloc.h"
#include "dp/toml.h"
}

struct dp_toml {
    toml::table table;
    struct dp_toml_node root;
    std::vector<std::unique_ptr<std::vector<dp_toml_node>>> arrays;
    std::vector<std::unique_ptr<std::string>> strings;
};

namespace
{

const char *keep(dp_toml &toml, std::string text)
{
    toml.strings.push_back(std::make_unique<std::string>(std::move(text)));
    return toml.strings.back()->c_str();
}

void convert(dp_toml &toml, const toml::node &from, dp_toml_node &to);

void take_children(dp_toml &toml, std::unique_ptr<std::vector<dp_toml_node>> children,
                   dp_toml_node &to)
{
    std::stable_sort(children->begin(), children->end(),
                     [](const dp_toml_node &a, const dp_toml_node &b) {
                         return a.line != b.line ? a.line < b.line : a.column < b.column;
                     });
    to.children = children->data();
    to.children_count = children->size();
    toml.arrays.push_back(std::move(children));
}

void convert_table(dp_toml &toml, const toml::table &from, dp_toml_node &to)
{
    auto children = std::make_unique<std::vector<dp_toml_node>>();
    for (const auto &[key, value] : from) {
        dp_toml_node child{};
        child.key = keep(toml, std::string(key.str()));
        child.key_line = static_cast<int>(key.source().begin.line);
        child.key_column = static_cast<int>(key.source().begin.column);
        convert(toml, value, child);
        children->push_back(child);
    }
    to.type = DP_TOML_TABLE;
    take_children(toml, std::move(children), to);
}

void convert_scalar(dp_toml &toml, const toml::node &from, dp_toml_node &to)
{
    if (const auto *text = from.as_string()) {
        to.type = DP_TOML_STRING;
        to.value.string = keep(toml, text->get());
        to.string_length = text->get().size();
    } else if (const auto *integer = from.as_integer()) {
        to.type = DP_TOML_INTEGER;
        to.value.integer = integer->get();
    } else if (const auto *number = from.as_floating_point()) {
        to.type = DP_TOML_FLOAT;
        to.value.number = number->get();
    } else if (const auto *boolean = from.as_boolean()) {
        to.type = DP_TOML_BOOLEAN;
        to.value.boolean = boolean->get();
    } else {
        std::ostringstream text;
        from.visit([&text](const auto &value) {
            if constexpr (toml::is_date<decltype(value)> || toml::is_time<decltype(value)> ||
                          toml::is_date_time<decltype(value)>) {
                text << value.get();
            }
        });
        to.type = DP_TOML_DATETIME;
        to.value.string = keep(toml, text.str());
        to.string_length = std::strlen(to.value.string);
    }
}

void convert(dp_toml &toml, const toml::node &from, dp_toml_node &to)
{
    to.line = static_cast<int>(from.source().begin.line);
    to.column = static_cast<int>(from.source().begin.column);
    if (const auto *table = from.as_table()) {
        convert_table(toml, *table, to);
    } else if (const auto *array = from.as_array()) {
        auto children = std::make_unique<std::vector<dp_toml_node>>();
        for (const auto &value : *array) {
            dp_toml_node child{};
            convert(toml, value, child);
            children->push_back(child);
        }
        to.type = DP_TOML_ARRAY;
        take_children(toml, std::move(children), to);
    } else {
        convert_scalar(toml, from, to);
    }
}

// Walks the text as the parser will, to find nesting before the parser does: brackets and the dots
// of one key, outside strings and comments. Every table that a dotted key makes is a level of
// recursion when it is destroyed, so the parser must not see a bomb of either kind. Where the text
// is no TOML the parser stops; it matters only that nothing is skipped here that is not skipped
// there.
class depth_scan
{
  public:
    depth_scan(const char *text, size_t length) : at_(text), end_(text + length)
    {
    }

    bool too_deep()
    {
        while (at_ < end_) {
            char c = *at_;
            if (c == '#') {
                while (at_ < end_ && *at_ != '\n') {
                    at_++;
                }
            } else if (c == '"' || c == '\'') {
                skip_string(c);
            } else if (!take(c)) {
                return true;
            } else {
                at_++;
            }
        }
        return false;
    }

    int line() const
    {
        return line_;
    }

  private:
    bool take(char c)
    {
        switch (c) {
        case '\n':
            line_++;
            dots_ = 0;
            break;
        case '.':
            dots_++;
            break;
        case '[':
        case '{':
            depth_++;
            dots_ = 0;
            break;
        case ']':
        case '}':
            depth_ -= depth_ > 0;
            dots_ = 0;
            break;
        case '=':
        case ',':
            dots_ = 0;
            break;
        default:
            break;
        }
        return depth_ <= DP_SPEC_DEPTH_MAX && dots_ <= DP_SPEC_DEPTH_MAX;
    }

    bool three(char quote) const
    {
        return end_ - at_ >= 3 && at_[0] == quote && at_[1] == quote && at_[2] == quote;
    }

    void skip_string(char quote)
    {
        bool multi_line = three(quote);
        at_ += multi_line ? 3 : 1;
        while (at_ < end_) {
            if (*at_ == '\n') {
                if (!multi_line) {
                    return; // not closed: the parser stops here
                }
                line_++;
            }
            if (*at_ == '\\' && quote == '"') {
                line_ += at_ + 1 < end_ && at_[1] == '\n';
                at_ += end_ - at_ >= 2 ? 2 : 1;
            } else if (*at_ == quote && !multi_line) {
                at_++;
                return;
            } else if (multi_line && three(quote)) {
                at_ += 3;
                // Up to two more quotes belong to the string.
                for (int i = 0; i < 2 && at_ < end_ && *at_ == quote; i++) {
                    at_++;
                }
                return;
            } else {
                at_++;
            }
        }
    }

    const char *at_;
    const char *end_;
    int line_ = 1;
    int depth_ = 0;
    int dots_ = 0;
};

} // namespace

extern "C" dp_status dp_toml_parse(const char *text, size_t length, struct dp_diags *diags,
                                   struct dp_toml **ret_toml, struct dp_error *err)
{
    if (length > DP_SPEC_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "%s has %zu bytes; the limit for a spec is %u",
                       diags->file, length, DP_SPEC_BYTES_MAX);
    }
    depth_scan scan(text, length);
    if (scan.too_deep()) {
        dp_diags_add(diags, scan.line(), 1, nullptr, "nested deeper than %d levels",
                     DP_SPEC_DEPTH_MAX);
        return dp_diags_status(diags, err);
    }
    auto toml = std::make_unique<dp_toml>();
    try {
        toml->table = toml::parse(std::string_view(text, length));
    } catch (const toml::parse_error &error) {
        dp_diags_add(diags, static_cast<int>(error.source().begin.line),
                     static_cast<int>(error.source().begin.column), nullptr, "%s",
                     std::string(error.description()).c_str());
        return dp_diags_status(diags, err);
    }
    toml->root = dp_toml_node{};
    convert_table(*toml, toml->table, toml->root);
    *ret_toml = toml.release();
    return DP_OK;
}

extern "C" void dp_toml_free(struct dp_toml *toml)
{
    delete toml;
}

extern "C" const struct dp_toml_node *dp_toml_root(const struct dp_toml *toml)
{
    return &toml->root;
}

extern "C" const struct dp_toml_node *dp_toml_get(const struct dp_toml_node *table, const char *key)
{
    for (size_t i = 0; i < table->children_count; i++) {
        if (table->children[i].key != nullptr && std::strcmp(table->children[i].key, key) == 0) {
            return &table->children[i];
        }
    }
    return nullptr;
}

extern "C" const char *dp_toml_type_text(dp_toml_type type)
{
    static const char *const texts[] = {"a table",  "an array",  "a string", "an integer",
                                        "a number", "a boolean", "a date"};
    return texts[type];
}
