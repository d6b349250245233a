package report

// AsJSON requests a State in JSON instead of text.
const AsJSON = "?output=json"
