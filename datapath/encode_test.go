package datapath

import (
	"encoding"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/conn"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/ovs"
	"hairpin/delta"
)

// drawAny sets v to any value that its type can hold.
func drawAny(t *rapid.T, v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *netip.Addr:
		*x = rapid.SampledFrom([]netip.Addr{{}, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"),
			netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("::ffff:1.2.3.4")}).Draw(t, "address")
		return
	case *netip.Prefix:
		*x = rapid.SampledFrom([]netip.Prefix{{}, netip.MustParsePrefix("10.0.0.1/8"),
			netip.MustParsePrefix("::/0")}).Draw(t, "prefix")
		return
	case *netip.AddrPort:
		*x = rapid.SampledFrom([]netip.AddrPort{{}, netip.MustParseAddrPort("10.0.0.1:0"),
			netip.MustParseAddrPort("[fd00::1]:80")}).Draw(t, "endpoint")
		return
	case *cluster.MAC:
		*x = cluster.MAC{rapid.Byte().Draw(t, "MAC")}
		return
	case delta.AnyMap:
		entries := reflect.New(reflect.TypeOf(x.Plain())).Elem()
		drawAny(t, entries)
		x.SetPlain(entries.Interface())
		return
	case encoding.TextUnmarshaler:
		t.Fatalf("cannot draw a %s", v.Type())
	}
	some := func() int { return rapid.IntRange(0, 3).Draw(t, "length") }
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.String:
		v.SetString(rapid.StringMatching(`[ -~é\n]{0,5}`).Draw(t, "text"))
	case reflect.Int:
		v.SetInt(int64(rapid.Int().Draw(t, "int")))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(rapid.Uint64Max(1<<v.Type().Bits()-1).Draw(t, "uint"))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		drawAny(t, v.Elem())
	case reflect.Interface:
		x := reflect.New(rapid.SampledFrom(kinds[v.Type()]).Draw(t, "kind")).Elem()
		drawAny(t, x)
		v.Set(x)
	case reflect.Struct:
		for i := range v.NumField() {
			drawAny(t, v.Field(i))
		}
	case reflect.Slice:
		if n := some(); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n-1, n-1)) // empty, or nil
		}
		for i := range v.Len() {
			drawAny(t, v.Index(i))
		}
	case reflect.Map:
		n := some()
		if n > 0 {
			v.Set(reflect.MakeMap(v.Type()))
		}
		for range n - 1 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			drawAny(t, value)
			if formOf(v.Type()) == ownKeys {
				key = ownKey(value, v.Type().Key())
			} else {
				drawAny(t, key)
			}
			v.SetMapIndex(key, value)
		}
	default:
		t.Fatalf("cannot draw a %s", v.Type())
	}
}

func TestDecodeReadsWhatEncodeWrote(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want, got State
		drawAny(t, reflect.ValueOf(&want).Elem())
		text, err := Encode(want)
		if err != nil {
			t.Fatal(err)
		}
		if err := Decode(text, &got); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("read back as\n%#v\nwant\n%#v\n%s", got, want, text)
		}
		if again, err := Encode(got); err != nil || string(again) != string(text) {
			t.Fatalf("%v\nencoded again\n%s\nbefore\n%s", err, again, text)
		}
	})
}

// example returns a State with something in every part.
func example() State {
	a, key := netip.MustParseAddr("10.0.0.1"), flow.Key{Table: 1, Match: flow.Match{Protocol: flow.IP}}
	s := State{
		NB: nb.State{},
		Bridge: ovs.State{Flows: delta.MapOf(map[flow.ID]*flow.Flow{key.ID(): {Key: key,
			Actions: []flow.Action{flow.Output{Port: "a"}, flow.Normal{}}}})},
		NFT: nft.State{nft.Inet: {
			Chains: map[string]*nft.Chain{"c": {Name: "c",
				Rules: []nft.Rule{{Matches: []nft.Match{nft.CTRelated}, Do: nft.SNAT{Addr: a}, Comment: "a < b"}}}},
			Sets: map[string]*nft.Set{"s": {Name: "s",
				Elements: delta.MapOf(map[nft.Element]cluster.Owner{{Addr: a}: {Kind: "Node", Name: "n"}})}},
		}},
		Host: host.State{Rules: map[host.Rule]cluster.Owner{{Priority: 1}: {}}},
		Conn: conn.State{Egress: map[netip.Addr]conn.Egress{a: {Elsewhere: true}}},
	}
	s.NB.Add(&nb.MACBinding{Port: "p", IP: a, MAC: cluster.MAC{2}})
	return s
}

const exampleText = `{"NB":[{"MACBinding":{"Port":"p","IP":"10.0.0.1","MAC":"02:00:00:00:00:00"}}],` +
	`"Bridge":{"Flows":[{"Table":1,"Match":{"Protocol":2},"Actions":[{"Output":{"Port":"a"}},{"Normal":{}}]}]},` +
	`"NFT":{"inet":{"Chains":{"c":{"Name":"c","Rules":[{"Matches":[{"CTState":"related"}],"Do":{"SNAT":{"Addr":"10.0.0.1"}},"Comment":"a < b"}]}},` +
	`"Sets":{"s":{"Name":"s","Elements":[{"Key":{"Addr":"10.0.0.1"},"Value":{"Kind":"Node","Name":"n"}}]}}}},` +
	`"Host":{"Rules":[{"Key":{"Priority":1},"Value":{}}]},"Conn":{"Egress":{"10.0.0.1":{"Elsewhere":true}}}}` + "\n"

func TestEncodedForm(t *testing.T) {
	if text, err := Encode(example()); err != nil || string(text) != exampleText {
		t.Fatalf("%v\n%swant\n%s", err, text, exampleText)
	}
}

// The error names what this version does not know, such as a field of another version.
func TestDecodeNamesWhatItDoesNotKnow(t *testing.T) {
	for _, c := range []struct{ text, words string }{
		{`{"Traffic": {}}`, "Traffic: a field of datapath.State that"},
		{`{"NB": [{"Meter": {}}]}`, "NB: Meter: a kind of nb.Row that"},
		{`{"Bridge": {"Flows": [{"Actions": [{"Mirror": {}}]}]}}`,
			"Bridge: Flows: Actions: Mirror: a kind of flow.Action that"},
		{`{"NB": [{}]}`, "without a kind"},
		{`{"NB": [null]}`, "unexpected <nil>, expected {"},
		{`{"NFT": {"inet": null}}`, "inet: unexpected <nil>"},
		{`{"Bridge": {"Flows": [{}, {}]}}`, "twice"},
		{`{"Host": {"Rules": [{"Name": 1}]}}`, "Name: neither Key nor Value"},
		{`{"Bridge": {"Flows": [{"Table": 256}]}}`, "Table: json: cannot unmarshal number 256"},
		{`{"Conn": {"Egress": {"x": {}}}}`, `unable to parse IP`},
		{`{"NB": [{"MACBinding": {"MAC": "1"}}]}`, "not a MAC address"},
		{`{} {}`, "after the value"},
		{`{"NB": [`, "EOF"},
		{"### OVN: ovn-nbctl, ovn-sbctl\n", "invalid character '#'"},
		{"", "EOF"},
	} {
		if err := Decode([]byte(c.text), &State{}); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s gives error %v, want one with %s", c.text, err, c.words)
		}
	}
}

// Every type that implements an interface of a field must be in kinds: the test finds the types in
// the sources.
func TestEveryKindIsKnown(t *testing.T) {
	for iface, list := range kinds {
		dir := strings.TrimSuffix(iface.String(), "."+iface.Name())
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		known := map[string]bool{}
		for _, k := range list {
			known[kindName(k)] = true
		}
		method := iface.Method(iface.NumMethod() - 1).Name
		for _, f := range files {
			if !strings.HasSuffix(f.Name(), ".go") {
				continue
			}
			text, err := os.ReadFile(dir + "/" + f.Name())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`func \((?:\w+ )?\*?(\w+)\) +`+method+`\(\)`).FindAllSubmatch(text,
				-1) {
				if !known[string(m[1])] {
					t.Errorf("%s.%s is no known kind", dir, m[1])
				}
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(exampleText))
	f.Fuzz(func(t *testing.T, text []byte) {
		var s, again State
		if Decode(text, &s) != nil {
			return
		}
		_ = Print(s)
		text, err := Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := Decode(text, &again); err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("%v\n%s", err, text)
		}
	})
}
