package flow

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/flow/oxm"
	"hairpin/openflow"
)

// numberCodec is the codec of an action that has only numbers as fields. %d and %x in the text are
// its numbers.
type numberCodec struct {
	zero     Action
	text     string
	encoding openflow.Action
}

func learnCodec(f cluster.Family, name string, source openflow.Field) codec {
	etherType := ip(f).row().etherType
	return numberCodec{Learn{Family: f}, fmt.Sprintf("learn(table=%%d,idle_timeout=%%d,delete_learned,cookie=0x%%x,"+
		"limit=%%d,eth_type=0x%x,NXM_NX_REG6[%%d..31],%s[],load:NXM_NX_REG7[]->NXM_NX_REG7[])", etherType, name),
		openflow.Learn(etherType, source)}
}

func (n numberCodec) zeroAction() Action {
	return reflect.Zero(reflect.TypeOf(n.zero)).Interface().(Action)
}

// numbers returns the numbers of an action, and false for one of another codec.
func (n numberCodec) numbers(a Action) (list []uint64, ok bool) {
	if l, is := a.(Learn); is {
		return []uint64{uint64(l.Table), uint64(l.Timeout), l.cookie(), uint64(l.Limit), uint64(l.VariantBits)},
			l.Family == n.zero.(Learn).Family
	}
	v := reflect.ValueOf(a)
	for i := range v.NumField() {
		list = append(list, v.Field(i).Uint())
	}
	return list, true
}

// action returns the action with these numbers, and false if there is none.
func (n numberCodec) action(list []uint64) (Action, bool) {
	v := reflect.New(reflect.TypeOf(n.zero)).Elem()
	if l, is := n.zero.(Learn); is {
		l.Table, l.Timeout, l.Client = uint8(list[0]), uint16(list[1]), uint32(list[2]>>32)
		l.Limit, l.VariantBits = uint32(list[3]), uint8(list[4])
		v.Set(reflect.ValueOf(l))
	} else {
		for i, x := range list {
			v.Field(i).SetUint(x)
		}
	}
	a := v.Interface().(Action)
	back, _ := n.numbers(a)
	return a, slices.Equal(back, list)
}

func (n numberCodec) append(b []byte, a Action) ([]byte, bool) {
	list, ok := n.numbers(a)
	args := make([]any, len(list))
	for i, x := range list {
		args[i] = x
	}
	return fmt.Appendf(b, n.text, args...), ok
}

func (n numberCodec) parse(s string) (Action, string, bool) {
	var list []uint64
	for text := n.text; ; {
		literal, next, more := strings.Cut(text, "%")
		rest, ok := strings.CutPrefix(s, literal)
		if !ok || !more {
			s = rest
			if !ok {
				return nil, s, false
			}
			break
		}
		digits := rest
		if i := strings.IndexAny(rest, ",.)]/-"); i >= 0 {
			digits = rest[:i]
		}
		text, s = next[1:], rest[len(digits):]
		if next[0] == 'x' {
			digits = "0x" + digits
		}
		x, err := strconv.ParseUint(digits, 0, 64)
		if err != nil {
			return nil, s, false
		}
		list = append(list, x)
	}
	a, ok := n.action(list)
	return a, s, ok
}

func (n numberCodec) encode(b []byte, a Action) ([]byte, bool) {
	list, ok := n.numbers(a)
	if !ok {
		return b, false
	}
	return n.encoding.Append(b, list...), true
}

func (n numberCodec) decode(b []byte) (Action, []byte, bool) {
	list, rest, ok := n.encoding.Cut(b)
	if !ok {
		return nil, b, false
	}
	a, ok := n.action(list)
	return a, rest, ok
}

// setCodec is the codec of an action that sets fields of packets. The action has a field for each,
// in the same order.
type setCodec struct {
	zero   Action
	fields []fieldForm
}

func fieldsOf(list ...openflow.Field) (forms []fieldForm) {
	for _, x := range list {
		forms = append(forms, byOXM[x][0])
	}
	return forms
}

func (s setCodec) zeroAction() Action { return s.zero }

// setting is a field of a packet and the value that an action writes to it.
type setting struct {
	fieldForm
	oxm.Value
}

// settings returns what an action of the codec writes. It returns false if a field cannot have the
// value.
func (s setCodec) settings(a Action) (list []setting, ok bool) {
	v := valuesOf(reflect.ValueOf(a))
	for i, f := range s.fields {
		var d oxm.Value
		switch x := v.Field(i).Interface().(type) {
		case cluster.MAC:
			d = oxm.OfMAC(x)
		case netip.Addr:
			d = oxm.OfAddr(x, x.BitLen())
		default:
			d = oxm.Exactly(v.Field(i).Uint())
		}
		if !d.Fits(f.oxm.Width()) || d == (oxm.Value{}) {
			return nil, false
		}
		list = append(list, setting{f, d})
	}
	return list, true
}

// valuesOf returns the struct with the values that an action writes: the action, or the Tunnel that
// SetTunnel embeds.
func valuesOf(v reflect.Value) reflect.Value {
	if v.Type() == reflect.TypeFor[SetTunnel]() {
		return v.Field(0)
	}
	return v
}

// action returns the action that writes the values that next returns for each field.
func (s setCodec) action(next func(i int) (setting, bool)) (Action, bool) {
	v := reflect.New(reflect.TypeOf(s.zero)).Elem()
	for i, f := range s.fields {
		x, ok := next(i)
		if !ok || x.oxm != f.oxm || !x.Exact() {
			return nil, false
		}
		to := valuesOf(v).Field(i)
		switch p := to.Addr().Interface().(type) {
		case *cluster.MAC:
			*p = x.MAC()
		case *netip.Addr:
			*p = x.Addr()
		default:
			if to.OverflowUint(x.Bits.Low) {
				return nil, false
			}
			to.SetUint(x.Bits.Low)
		}
	}
	return v.Interface().(Action), true
}

func (s setCodec) append(b []byte, a Action) ([]byte, bool) {
	list, ok := s.settings(a)
	for i, x := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = x.append(b)
	}
	return b, ok
}

func (s setCodec) parse(text string) (Action, string, bool) {
	a, ok := s.action(func(i int) (x setting, ok bool) {
		if i > 0 && !strings.HasPrefix(text, ",") {
			return x, false
		}
		x, text, ok = parseSetting(strings.TrimPrefix(text, ","))
		return x, ok
	})
	return a, text, ok
}

func (s setCodec) encode(b []byte, a Action) ([]byte, bool) {
	list, ok := s.settings(a)
	for _, x := range list {
		b = x.encode(b)
	}
	return b, ok
}

func (s setCodec) decode(b []byte) (Action, []byte, bool) {
	a, ok := s.action(func(int) (x setting, ok bool) {
		x, b, ok = decodeSetting(b)
		return x, ok
	})
	return a, b, ok
}

// append appends set_field:value->field.
func (s setting) append(b []byte) []byte {
	b = s.notation.Append(append(b, "set_field:"...), s.Value)
	return append(append(b, "->"...), s.settingName()...)
}

// parseSetting parses set_field:value->field at the beginning of a text.
func parseSetting(text string) (s setting, rest string, ok bool) {
	word, rest := cutOutside(text, ',')
	if len(rest) > 0 {
		rest = "," + rest
	}
	value, name, _ := strings.Cut(strings.TrimPrefix(word, "set_field:"), "->")
	f, known := byName[name]
	if !known || f.notation == nil || !strings.HasPrefix(word, "set_field:") {
		return s, text, false
	}
	d, err := f.notation.Parse(value, 8*f.oxm.Width())
	return setting{f, d}, rest, err == nil && d.Fits(f.oxm.Width())
}

// encode appends the action that writes the field.
func (s setting) encode(b []byte) []byte {
	return openflow.SetField(b, s.Value.Encode(nil, s.oxm))
}

func decodeSetting(b []byte) (s setting, rest []byte, ok bool) {
	x, rest, ok := openflow.CutSetField(b)
	list := byOXM[x.Field]
	if !ok || len(list) == 0 || list[0].notation == nil {
		return s, b, false
	}
	return setting{list[0], list[0].decode(x)}, rest, true
}

// outputCodec is the codec of Output.
type outputCodec struct{}

func (outputCodec) zeroAction() Action { return Output{} }

func (outputCodec) append(b []byte, a Action) ([]byte, bool) {
	port := a.(Output).Port
	if port == Local {
		return append(b, Local...), true
	}
	return appendPort(append(b, "output:"...), port), true
}

func (outputCodec) parse(s string) (Action, string, bool) {
	word, _ := cutOutside(s, ',')
	rest := s[len(word):]
	name, named := strings.CutPrefix(word, "output:")
	port, err := unquote(name)
	isField := strings.ContainsAny(name, "[(") && name[0] != '"' // another action, such as output:NXM_NX_REG0[]
	if !named || err != nil || port == "" || isField {
		return Output{Local}, rest, word == Local
	}
	return Output{port}, rest, true
}

func (outputCodec) encode(b []byte, a Action) ([]byte, bool) {
	return openflow.Output.Append(b, uint64(portNumber(a.(Output).Port))), true
}

func (outputCodec) decode(b []byte) (Action, []byte, bool) {
	list, rest, ok := openflow.Output.Cut(b)
	if !ok {
		return nil, b, false
	}
	port := portName(uint32(list[0]))
	return Output{port}, rest, port != ""
}
