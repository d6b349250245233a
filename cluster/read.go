package cluster

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// ReadSnapshot reads the JSON form of a Snapshot from an agent. The agent of another node is not
// trusted: a list with a null element or an invalid address is an error.
func ReadSnapshot(text []byte) (*Snapshot, error) {
	s := &Snapshot{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	if err := checkComplete("snapshot", reflect.ValueOf(s)); err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	return s, nil
}

// checkComplete returns an error if a list has an element that is null, or an invalid address.
// Other pointers may be nil: these are fields that an object does not have.
func checkComplete(path string, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return checkComplete(path, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			at := fmt.Sprintf("%s[%d]", path, i)
			if x := v.Index(i); x.Kind() == reflect.Pointer && x.IsNil() {
				return fmt.Errorf("%s is null", at)
			}
			if x, ok := v.Index(i).Interface().(interface{ IsValid() bool }); ok && !x.IsValid() {
				return fmt.Errorf("%s is not an address", at)
			}
			if err := checkComplete(at, v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				if err := checkComplete(path+"."+f.Name, v.Field(i)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
