"""Forecast of each source's arrivals, from the minutes of its history. Pure: time is the observations' own.

`application` advances all sources of an application and makes the message, `series` makes minutes of observations,
`model` learns from them and leaves outages out, `methods` forecast, `band` bounds the highest rate within a horizon.
"""
