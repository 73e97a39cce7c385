package kafka_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/kafka"
)

func TestTopicNamesAreReversible(t *testing.T) {
	t.Parallel()
	gen := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom([]rune("_u5f2e_.ab-é \""))))
	rapid.Check(t, func(t *rapid.T) {
		table := millrace.TableName{Schema: gen.Draw(t, "schema"), Name: gen.Draw(t, "name")}
		topic := kafka.TopicOf("shop", table)
		for _, c := range topic {
			if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.", c) {
				t.Fatalf("%q is illegal in %q", c, topic)
			}
		}
		back, ok := kafka.TableOf("shop", topic)
		if strings.ToValidUTF8(table.Schema, "") == table.Schema && strings.ToValidUTF8(table.Name, "") == table.Name && (!ok || back != table) {
			t.Fatalf("%v -> %s -> %v", table, topic, back)
		}
	})
}

func TestTopicNames(t *testing.T) {
	t.Parallel()
	for table, want := range map[millrace.TableName]string{
		{Schema: "public", Name: "orders"}:     "shop.public.orders",
		{Schema: "public", Name: "Odd name.x"}: "shop.public.Odd_u20_name_u2e_x",
		{Schema: "s", Name: "a_u20_b"}:         "shop.s.a_u5f_u20_b",
		{Schema: "s", Name: "__u_"}:            "shop.s.__u_",
		{Schema: "s", Name: "é"}:               "shop.s._ue9_",
	} {
		if got := kafka.TopicOf("shop", table); got != want {
			t.Errorf("%v: %s, want %s", table, got, want)
		}
	}
	tables := []millrace.TableName{{Schema: "a_b", Name: "c"}, {Schema: "a", Name: "b_c"}, {Schema: "a", Name: strings.Repeat("x", 250)}}
	if got := kafka.CheckTopics("p", tables, nil); len(got) != 2 {
		t.Errorf("%v", got)
	}
	if got := kafka.CheckTopics("p", tables[:2], map[millrace.TableName]string{tables[0]: "p.other"}); len(got) != 0 {
		t.Errorf("%v", got)
	}
	for _, own := range []string{"p.transaction", "p.stream", "p.schema", "p.millrace.other"} {
		if got := kafka.CheckTopics("p", tables[:1], map[millrace.TableName]string{tables[0]: own}); len(got) != 1 {
			t.Errorf("a table in topic %s: %v", own, got)
		}
	}
}
