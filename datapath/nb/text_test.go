package nb_test

import (
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"hairpin/datapath/datapathtest"
	"hairpin/datapath/nb"
	"hairpin/datapath/nb/nbtest"
	"hairpin/delta"
)

func same(a, b nb.State) bool { return maps.EqualFunc(a, b, nb.Equal) }

func TestDiffLeadsToWant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gen := nbtest.States(rapid.Bool().Draw(t, "wild"))
		want, have := gen.Draw(t, "want"), gen.Draw(t, "have")
		d := nb.Diff(want, have)
		if got := nb.State(d.ApplyTo(have)); !same(got, want) {
			t.Fatalf("%v is not %v", got, want)
		}
		if d.Empty() != (nb.Print(want) == nb.Print(have)) {
			t.Fatalf("Diff and Print do not agree: %v", d)
		}
	})
}

// The test changes each field of each row alone, whatever fields a row has.
func TestEqualSeesEveryField(t *testing.T) {
	for _, r := range nb.Rows() {
		typ := reflect.TypeOf(r).Elem()
		for i := range typ.NumField() {
			a, b := reflect.New(typ), reflect.New(typ)
			change(t, b.Elem().Field(i))
			x, y := a.Interface().(nb.Row), b.Interface().(nb.Row)
			if nb.Equal(x, y) || nb.Equal(y, x) {
				t.Errorf("%s: rows that differ in %s are equal", typ, typ.Field(i).Name)
			}
			if owner := typ.Field(i).Name == "Owner"; owner != nb.SameContent(x, y) {
				t.Errorf("%s: %s is content: %v", typ, typ.Field(i).Name, owner)
			}
			change(t, a.Elem().Field(i))
			if !nb.Equal(x, y) {
				t.Errorf("%s: rows with the same %s differ", typ, typ.Field(i).Name)
			}
		}
	}
	if nb.Equal(&nb.Router{Name: "a"}, &nb.Switch{Name: "a"}) {
		t.Error("a router is a switch")
	}
	p := netip.MustParsePrefix
	x := &nb.RouterPort{Networks: []netip.Prefix{p("10.0.0.1/24"), p("fd00::1/64")}, Options: map[string]string{}}
	y := &nb.RouterPort{Networks: []netip.Prefix{p("fd00::1/64"), p("10.0.0.1/24")}}
	if !nb.Equal(x, y) {
		t.Error("sets in another order, and an empty map, make a difference")
	}
}

// change sets v to a value that is not zero, the same each time.
func change(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Int:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint32:
		v.SetUint(1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Array:
		change(t, v.Index(0))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		change(t, v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("x"), reflect.ValueOf("y"))
	case reflect.Struct:
		switch x := v.Addr().Interface().(type) {
		case *netip.Addr:
			*x = netip.MustParseAddr("10.0.0.1")
		case *netip.Prefix:
			*x = netip.MustParsePrefix("10.0.0.0/8")
		case *netip.AddrPort:
			*x = netip.MustParseAddrPort("10.0.0.1:80")
		default:
			change(t, v.Field(0))
		}
	default:
		t.Fatalf("a field is a %s: say here what another value of it is", v.Type())
	}
}

func TestRowsAreInTheOrderOfTables(t *testing.T) {
	for i, r := range nb.Rows() {
		if k := reflect.New(reflect.TypeOf(r).Elem()).Interface().(nb.Row).Key(); int(k.Table) != i {
			t.Errorf("%T has place %d, its keys are of %s", r, i, k.Table)
		}
	}
}

func TestKeysOrderRowsAfterWhatTheyName(t *testing.T) {
	s := nb.State{}
	s.Add(&nb.LoadBalancer{Name: "a", Groups: []string{"z"}}, &nb.Group{Name: "z"},
		&nb.RouterPort{Name: "a", Router: "z"}, &nb.Router{Name: "z"},
		&nb.NAT{Router: "z"}, &nb.SwitchPort{Name: "a", Switch: "z"}, &nb.Switch{Name: "z"}, &nb.MACBinding{Port: "a"},
		&nb.Global{})
	var tables []nb.Table
	for _, k := range delta.Sorted(s, nb.Key.Compare) {
		tables = append(tables, k.Table)
	}
	want := []nb.Table{nb.TableGlobal, nb.TableGroup, nb.TableRouter, nb.TableRouterPort, nb.TableSwitch,
		nb.TableSwitchPort, nb.TableMACBinding, nb.TableNAT, nb.TableLoadBalancer}
	if !slices.Equal(tables, want) {
		t.Fatalf("order is %v", tables)
	}
}

// Print writes what a user types: testdata has States and their texts.
func TestTextIsOvnNbctl(t *testing.T) {
	for _, name := range []string{"node-a", "words"} {
		got := nb.Print(datapathtest.Read[nb.State](t, "testdata/"+name+".json"))
		if want, err := os.ReadFile("testdata/" + name + ".sh"); err != nil || got != string(want) {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
}
