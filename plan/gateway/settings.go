package gateway

// SettingKeys are the keys of Open_vSwitch's external_ids that are ours: those that plan may want.
// Others stay as they are.
func SettingKeys() []string {
	return []string{
		"system-id", "hostname", "ovn-remote", "ovn-encap-type", "ovn-encap-ip", "ovn-bridge-mappings",
		"ovn-is-interconn",
		"ovn-monitor-all", "ovn-enable-lflow-cache", "ovn-bridge-datapath-type",
	}
}
