package gateway

// SettingKeys returns the keys of Open_vSwitch's external_ids that Hairpin owns: those that plan
// may set. Other keys are not changed.
func SettingKeys() []string {
	return []string{
		"system-id", "hostname", "ovn-remote", "ovn-encap-type", "ovn-encap-ip", "ovn-bridge-mappings",
		"ovn-is-interconn",
		"ovn-monitor-all", "ovn-enable-lflow-cache", "ovn-bridge-datapath-type",
	}
}
