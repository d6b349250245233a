package flow

import "testing"

// TestFieldsAreInOrder checks that Match.Fields lists the fields in the order of the table that
// describes them.
func TestFieldsAreInOrder(t *testing.T) {
	for i := range fields {
		m := Match{InPort: "1", Protocol: TCP}
		before := m.Fields()
		d := exactly(5)
		switch f := &fields[i]; f.notation.(type) {
		case nil:
			continue
		case words:
			d = f.notation.(words)[0].datum()
		case digits:
			d = exactly(5 + f.notation.(digits).offset)
		case ipText:
			d.size = 16
		}
		if !fields[i].put(&m, d) || m.Fields() != before|1<<i {
			t.Errorf("%s: fields %b, before %b", fields[i].forms[0].name, m.Fields(), before)
		}
	}
	if m := (Match{InPort: "1", Protocol: TCP}); m.Fields() != 1|1<<3|1<<7 {
		t.Errorf("fields of tcp by a port: %b", m.Fields())
	}
}
