"""Forecast of each source's arrivals, from the minutes of its history. Pure: time is the observations' own.

`application` advances all sources of an application, `series` makes minutes of observations, `model` learns from them:
`flow` leaves outages out, `methods` and `profile` forecast, `band` bounds the highest rate within a horizon. `report`
makes the message.
"""
